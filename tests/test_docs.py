"""The documentation says what the program does."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from mslaunch.cli import VERBS
from mslaunch.plan.settings import LaunchSettings
from tests.conftest import MSLAUNCH, ROOT

DOCS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md"), *ROOT.glob("rank_tables/*.md")]
)


def help_of(*words: str) -> str:
    env = {"PATH": os.environ["PATH"], "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    done = subprocess.run([MSLAUNCH, *words, "--help"], capture_output=True, text=True, check=True, env=env)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def reference() -> str:
    parts = ["# Command line\n\nWritten from `--help`; `UPDATE_GOLDEN=1 pytest tests/test_docs.py` writes it anew.\n"]
    parts += [f"## mslaunch\n\n```text\n{help_of()}\n```\n"]
    parts += [f"## mslaunch {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in VERBS]
    return "\n".join(parts)


def test_the_command_line_reference_is_what_help_prints() -> None:
    """docs/cli.md is generated, and never out of date."""
    path = ROOT / "docs" / "cli.md"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(reference())
    assert path.read_text() == reference()


def test_every_setting_is_documented() -> None:
    """docs/config.md has a row for every key of launch, and no other."""
    rows = re.findall(r"^\| (\w+) \| ", (ROOT / "docs" / "config.md").read_text(), re.MULTILINE)
    assert rows[1:] == list(LaunchSettings.model_fields)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: os.PathLike[str]) -> None:
    """A relative link in any document names a file that exists."""
    text = (ROOT / path).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / path).parent / target).exists(), f"{path}: {target}"
