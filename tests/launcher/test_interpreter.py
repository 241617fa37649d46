"""The Python of the ranks: what is said before the start about its MindSpore and about the active environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mslaunch.errors import NotReadyError
from mslaunch.launcher.facts import TRIED, check_version, describe_version, mindspore_version
from mslaunch.plan.methods import METHODS
from tests.conftest import ROOT, Bench

OTHER = 'exec {python} -S -c "import sys; sys.path.append(\'{site}\'); exec(sys.argv[1])" "$2"\n'


def test_versions_that_were_not_tried_are_named_before_the_start() -> None:
    """Those that were tried are not; of one that numbers ranks by itself, that is said."""
    versions = ("2.0.0", "2.3.0rc1", "2.6.1", "2.7.0", "2.8.0", "2.9.1", "2.10.0", "2.11.0")
    notes = {version: list(describe_version(version, "python")) for version in versions}
    assert [version for version, note in notes.items() if note] == ["2.0.0", "2.3.0rc1", "2.6.1", "2.11.0"]
    assert "get_rank() may differ from RANK_ID" in notes["2.0.0"][0]
    assert notes["2.6.1"] == ["MindSpore 2.6.1 (python) was not tried with mslaunch; 2.7, 2.8, 2.9, 2.10 were"]
    assert list(describe_version(None, "python")) == []


def test_msrun_of_a_mindspore_without_it_is_refused() -> None:
    """It came with 2.3."""
    check_version("2.3.0", METHODS["msrun"], "python")
    check_version("2.0.0", METHODS["dynamic"], "python")
    with pytest.raises(NotReadyError, match=r"MindSpore 2\.2\.14 \(python\) has no msrun"):
        check_version("2.2.14", METHODS["msrun"], "python")


def test_the_version_is_that_of_the_ranks_python(tmp_path: Path) -> None:
    """Another Python is asked, without importing MindSpore."""
    site = tmp_path / "site"
    (site / "mindspore").mkdir(parents=True)
    (site / "mindspore_ascend-2.5.0.dist-info").mkdir()
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{OTHER.format(python=sys.executable, site=site)}")
    python.chmod(0o700)
    assert mindspore_version(str(python)) == "2.5.0"


def test_both_pages_name_the_versions_that_were_tried() -> None:
    """README and methods.md say what the code says."""
    words = f"{', '.join(TRIED[:-1])} and {TRIED[-1]}"
    for page in ("README.md", "docs/methods.md"):
        assert words in (ROOT / page).read_text(), page


def test_an_active_environment_that_the_ranks_do_not_use_is_named(bench: Bench) -> None:
    """Before the start, with both names; not where launch.python names a Python, or where it is the same one."""
    bench.write("train.py", "")
    other = bench.folder / "env"
    other.mkdir()
    words = ("train", "-n", "1", "--dry-run", "train.py")
    said = f"the ranks run with {sys.executable}, as mslaunch does, not with the active environment {other}"
    assert said in bench.mslaunch(*words, VIRTUAL_ENV=str(other)).stdout
    assert said in bench.mslaunch(*words, CONDA_PREFIX=str(other), CONDA_DEFAULT_ENV="work").stdout
    for env in (
        {"VIRTUAL_ENV": str(other), "MSLAUNCH_PYTHON": sys.executable},
        {"VIRTUAL_ENV": sys.prefix},
        {"CONDA_PREFIX": str(other), "CONDA_DEFAULT_ENV": "base"},
    ):
        assert "active environment" not in bench.mslaunch(*words, **env).stdout
