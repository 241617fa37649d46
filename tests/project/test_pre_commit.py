"""The hooks of pre-commit are the commands of `make lint`."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.conftest import ROOT


def hooks() -> list[dict[str, Any]]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    return [hook for repo in config["repos"] for hook in repo["hooks"]]


def test_pre_commit_runs_what_make_lint_runs() -> None:
    """The commands are the same, in the same order."""
    makefile = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    assert "VENV := .venv\n" in makefile
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert [hook["entry"] for hook in hooks()] == [line.strip() for line in recipe[1].splitlines()]


def test_pre_commit_checks_the_whole_project() -> None:
    """Every hook runs at every commit, on all files, with the tools of .venv."""
    for hook in hooks():
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True)
