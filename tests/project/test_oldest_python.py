"""Agent, worker and runtime run on hosts whose Python is 3.9: checked without such a Python, and with one if found."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path

import pytest

import mslaunch

PACKAGE = Path(mslaunch.__file__).parent
SENT_TO_HOSTS = sorted(
    path
    for folder in ("agent", "worker", "runtime", "shared")
    for path in (PACKAGE / folder).rglob("*.py")
    if path.parent.name != "call_script"  # a script: it acts when it is imported
)
VERMIN = (sys.executable, "-c", "import vermin; vermin.main()", "--no-config-file", "--target=3.9-", "--violations")
LAZY = "from __future__ import annotations\n"


class Unions(ast.NodeVisitor):
    """Collects the lines with unions such as `int | None` that Python evaluates. vermin cannot tell them from flags."""

    def __init__(self, lazy: bool) -> None:
        self.lazy = lazy
        self.lines: list[int] = []

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.BitOr) and (is_type(node.left) or is_type(node.right)):
            self.lines.append(node.lineno)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        if not self.lazy:
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if self.lazy:
            node.returns = None
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.lazy:
            node.annotation = node.target
        self.generic_visit(node)


def is_type(node: ast.expr) -> bool:
    """Is this None, a built-in type, or a generic one such as list[str]?"""
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Name):
        return isinstance(getattr(builtins, node.id, None), type)
    return isinstance(node, ast.Constant) and node.value is None


def newer_than_3_9(*paths: Path) -> list[str]:
    """Return what in these modules needs a newer Python than 3.9."""
    found = []
    for path in paths:
        source = path.read_text()
        unions = Unions(LAZY in source)
        unions.visit(ast.parse(source, path.name, feature_version=(3, 9)))
        found += [f"{path}:{line}: a union with |" for line in unions.lines]
    done = subprocess.run([*VERMIN, "--quiet", "-vvv", *paths], capture_output=True, text=True)
    assert done.stderr == ""
    return [*found, *filter(None, done.stdout.splitlines())] if done.returncode else found


def test_what_hosts_run_needs_no_newer_python() -> None:
    """Syntax and standard library of agent, worker and runtime are those of Python 3.9."""
    found = newer_than_3_9(*SENT_TO_HOSTS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "newer",
    [
        "print(list(zip([1], [2], strict=True)))",
        "print((5).bit_count())",
        "from itertools import pairwise",
        "from datetime import UTC",
        "import tomllib",
        "import os\nos.eventfd(0)",
        "raise ExceptionGroup('', [OSError()])",
        "import dataclasses\n@dataclasses.dataclass(slots=True)\nclass A:\n    x: int",
        "Number = int | None",
        "isinstance(1, (list[str] | str))",
    ],
)
def test_a_newer_name_is_found(tmp_path: Path, newer: str) -> None:
    """A name, an argument or a union that came after Python 3.9 is found in one of the real modules."""
    path = tmp_path / "newer.py"
    path.write_text(f"{SENT_TO_HOSTS[1].read_text()}\n{newer}\n")
    assert newer_than_3_9(path)


def test_newer_syntax_is_found(tmp_path: Path) -> None:
    """A match statement is a syntax error, and a union in an annotation is found if Python evaluates it."""
    path = tmp_path / "newer.py"
    path.write_text(LAZY + "match 1:\n    case 1:\n        pass\n")
    with pytest.raises(SyntaxError, match=r"3\.10"):
        newer_than_3_9(path)
    annotated = "def f(x: int | None) -> int | None:\n    y: int | None = x\n    return y\n"
    path.write_text(annotated)
    assert newer_than_3_9(path)
    path.write_text(LAZY + annotated + "print(f(1 | 2))\n")
    assert newer_than_3_9(path) == []


def test_every_module_is_imported_by_python_3_9(python_3_9: str) -> None:
    """Python 3.9 itself, with its standard library alone, imports every module of agent, worker and runtime."""
    names = [".".join(("mslaunch", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in SENT_TO_HOSTS]
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n" + "".join(f"import {name}\n" for name in names)
    done = subprocess.run([python_3_9, "-B", "-I", "-S", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
