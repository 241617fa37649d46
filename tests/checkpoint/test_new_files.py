"""Files that verbs write where the user says: one that is there stays as it is, unless --force is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beds import forked
from tests.beds.past_runs import make_run, tell_steps
from tests.conftest import Bench

FIXTURES = Path(__file__).parents[1] / "fixtures"
HCCN = "address_0=192.168.1.1\n"
VERBS: dict[str, tuple[str, ...]] = {
    "report": ("report", "one", "-o"),
    "export": ("export", "one", "--csv"),
    "generate": ("rank-table", "generate", "--hccn", "hccn.conf", "--server_ip", "10.0.0.1", "-o"),
    "merge": ("rank-table", "merge", "table.json", "-o"),
    "convert": ("rank-table", "convert", "table.json", "-o"),
    "validate": ("rank-table", "validate", "table.json", "--fix", "-o"),
    "strategy": ("strategy", "merge", str(FIXTURES / "strategies/pp2tp2"), "-o"),
    "bundle": ("diagnose", "one", "--bundle"),
    "import": ("ckpt", "import", str(FIXTURES / "checkpoints/full/rank_0/net.ckpt"), "--to"),
}
"""Verbs that write one file, up to its name."""
WITHOUT_FORCE = ("bundle", "import")


@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_is_there_is_not_overwritten(bench: Bench, verb: str) -> None:
    """Exit code 2 and its name; the command writes it where it is new, and where --force is given."""
    tell_steps(make_run(bench.runs, "one"), 60)
    bench.write("hccn.conf", HCCN)
    forked.run(bench, "rank-table", "generate", "--hccn", "hccn.conf", "--server_ip", "10.0.0.1", "-o", "table.json")
    suffix = "json" if VERBS[verb][0] == "rank-table" else "ckpt"
    there = bench.write(f"there.{suffix}", "mine")
    refused = forked.run(bench, *VERBS[verb], there.name)
    assert (refused.returncode, there.read_text()) == (2, "mine")
    assert refused.stderr.startswith(f"mslaunch: {there.name}: ")
    assert forked.run(bench, *VERBS[verb], f"new.{suffix}").returncode == 0
    assert (bench.folder / f"new.{suffix}").stat().st_size > 0
    if verb not in WITHOUT_FORCE:
        assert forked.run(bench, *VERBS[verb], there.name, "--force").returncode == 0
        assert there.read_bytes() != b"mine"
