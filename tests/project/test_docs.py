"""The documentation says what the program does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from mslaunch.cli import VERBS
from mslaunch.diagnose.patterns.pattern import Pattern
from mslaunch.errors import ExitCode
from mslaunch.plan.methods import METHODS
from mslaunch.plan.methods.method import Method
from mslaunch.settings.launch import SETTINGS
from mslaunch.transports.base import Channel, JobContext, JobQueue, Transport
from tests.beds import file_ways
from tests.conftest import MSLAUNCH, ROOT
from tools import doc_tables

DOCS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md"), *ROOT.glob("rank_tables/*.md")]
)


def help_of(*words: str) -> str:
    env = {"PATH": os.environ["PATH"], "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    done = subprocess.run([MSLAUNCH, *words, "--help"], capture_output=True, text=True, check=True, env=env)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def reference() -> str:
    parts = [
        "# Command line\n\nWritten from `--help`; `UPDATE_GOLDEN=1 pytest tests/project/test_docs.py` writes it anew.\n"
    ]
    parts += [f"## mslaunch\n\n```text\n{help_of()}\n```\n"]
    parts += [f"## mslaunch {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


def test_the_command_line_reference_is_what_help_prints() -> None:
    """docs/cli.md is generated, and never out of date."""
    path = ROOT / "docs" / "cli.md"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(reference())
    assert path.read_text() == reference()


@pytest.mark.parametrize("path", doc_tables.pages(), ids=lambda path: path.name)
def test_tables_are_written_from_the_code(path: Path) -> None:
    """`python -m tools.doc_tables` brings them up to date."""
    assert path.read_text() == doc_tables.with_tables(path.read_text())


def test_the_chinese_table_has_every_setting_with_its_default() -> None:
    """docs/zh/config.md has a row for every key of launch, with the value of its default or words for it."""
    text = (ROOT / "docs" / "zh" / "config.md").read_text()
    cells = dict(re.findall(r"^\| (\w+) \| ([^|]*) \| ", text.partition("|---|---|---|\n")[2], re.MULTILINE))
    assert list(cells) == list(SETTINGS)
    defaults = {name: doc_tables.written_default(name) for name in SETTINGS}
    wrong = {name: cells[name] for name, default in defaults.items() if (default or cells[name]) != cells[name]}
    assert wrong == {}
    assert [name for name in cells if not cells[name]] == []


def test_the_chinese_table_has_every_exit_code() -> None:
    """docs/zh/reference.md has a row for every exit code, in the same order."""
    section = (ROOT / "docs" / "zh" / "reference.md").read_text().partition("## 退出码\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \| ", section, re.MULTILINE) == [str(int(code)) for code in ExitCode]


def test_the_page_of_ways_to_write_is_what_is_tested() -> None:
    """Its table is made of the list that a real job goes through."""
    assert file_ways.table() in (ROOT / "docs" / "file-ways.md").read_text()


def test_every_method_is_documented() -> None:
    """docs/methods.md has a row for every built-in method, and no other."""
    rows = re.findall(r"^\| ([\w-]+)(?: \(default\))? \| ", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    assert rows == list(METHODS)


@pytest.mark.parametrize("kind", [Transport, JobContext, Channel, JobQueue, Method, Pattern])
def test_the_contract_of_plug_ins_is_documented(kind: type) -> None:
    """The section of docs/transports.md has a row for every public member, and no other."""
    title = "Patterns" if kind is Pattern else kind.__name__
    section = (ROOT / "docs" / "transports.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    members = {name for name in (*vars(kind), *kind.__annotations__) if not name.startswith("_")}
    assert sorted(re.findall(r"^\| `(\w+)` \| ", section, re.MULTILINE)) == sorted(members)


@pytest.mark.parametrize("name", ["pyproject.toml", "mslaunch_netns/__init__.py"])
def test_the_example_of_a_plug_in_is_the_one_that_is_tested(name: str) -> None:
    """docs/transports.md shows the files of tests/netns_plugin as they are."""
    shown = (ROOT / "docs" / "transports.md").read_text().partition(f"`{name}`:\n\n")[2]
    assert shown.split("```")[1].partition("\n")[2] == (ROOT / "tests" / "netns_plugin" / name).read_text()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: os.PathLike[str]) -> None:
    """A relative link in any document names a file that exists."""
    text = (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / path).parent / target).exists(), f"{path}: {target}"


def test_every_line_of_the_threat_model_names_a_test_that_exists() -> None:
    """docs/security.md promises nothing that no test shows."""
    text = (ROOT / "docs" / "security.md").read_text()
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| they |", "| it |", "| file |", "| what |"))
    ]
    assert len(rows) > 20
    for row in rows:
        named = re.search(r"`(test_\w+\.py)::(test_\w+)` \|$", row)
        assert named, row
        source = next((ROOT / "tests").rglob(named[1])).read_text()
        assert f"def {named[2]}(" in source, row


ENGLISH = [path for path in DOCS if "zh" not in path.parent.name and "zh-CN" not in path.name and path.name != "cli.md"]


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_text_are_short(path: Path) -> None:
    """At most 100 characters, for terminals and diffs; code, tables and what cannot be broken may be longer."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("    ", "|"))]
    unbroken = [re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "_"), line) for line in lines]
    assert [line for line in unbroken if len(line) > 100 and " " in line[4:101]] == []
