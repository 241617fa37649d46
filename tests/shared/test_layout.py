"""The names of a run's files stand in mslaunch/shared/layout.py, and nowhere else in the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mslaunch
from mslaunch.shared import layout

PACKAGE = Path(mslaunch.__file__).parent
NAMES = {value for value in vars(layout).values() if isinstance(value, str) and re.fullmatch(r"[\w./]+\.\w+", value)}
FORBIDDEN = re.compile("|".join([*map(re.escape, sorted(NAMES)), "scripts/", r"\brank_(?![a-z])"]))


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string that is no docstring; an f-string as one, with `{}` for each of its values."""
    skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
            inner = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            yield from (found for value in inner for found in strings(value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


OTHERS = {"weights/opening.py": "config.json"}
"""Files of other programs that are called like one of ours: Hugging Face's."""


def spelled_out(source: str) -> list[str]:
    """File names in strings; what has a space in it is a sentence for people."""
    found = strings(ast.parse(source))
    return [f"{line}: {text}" for line, text in found if FORBIDDEN.search(text) and " " not in text]


def test_no_other_module_spells_a_file_name() -> None:
    """All packages take them from one module."""
    for path in PACKAGE.rglob("*.py"):
        if path != PACKAGE / "shared" / "layout.py":
            other = OTHERS.get(str(path.relative_to(PACKAGE)))
            found = [one for one in spelled_out(path.read_text()) if one.partition(": ")[2] != other]
            assert found == [], path


@pytest.mark.parametrize(
    "source", ['x = "log.txt"', 'x = f"{run}/rank_{rank}"', "x = f\"{join(y, 'exit.json')}\"", 'x = "scripts/a.sh"']
)
def test_a_spelled_name_is_found(source: str) -> None:
    """Plain, in an f-string, or in a value of one."""
    assert len(spelled_out(source)) == 1


def test_docstrings_sentences_and_other_words_are_not_meant() -> None:
    """`rank_table` is a setting, and a sentence may name a file."""
    assert spelled_out('"""Reads log.txt."""\nx = "see log.txt there"\ny = "rank_table"\n') == []


@pytest.mark.parametrize(("name", "earlier"), [("log.txt", "log.2.txt"), ("plog", "plog.2"), ("a.b.log", "a.b.2.log")])
def test_files_of_earlier_attempts_have_its_number(name: str, earlier: str) -> None:
    """Before the suffix, where there is one."""
    assert layout.earlier_name(name, 2) == earlier
