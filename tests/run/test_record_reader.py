"""A run that is looked at again and again: its record is parsed when it has changed, and how it stands is true."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mslaunch.run import launchers
from mslaunch.run import run as record_reader
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RunRecord, read
from mslaunch.run.run import Run
from mslaunch.shared.processes import read_stat
from tests.beds.watch_bed import make_run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[RunFolder]:
    """Every time that a record was parsed."""
    found: list[RunFolder] = []

    def counted(folder: RunFolder) -> RunRecord:
        found.append(folder)
        return read(folder)

    monkeypatch.setattr(record_reader, "read", counted)
    return found


def test_a_record_that_has_not_changed_is_not_parsed_again(tmp_path: Path, reads: list[RunFolder]) -> None:
    """As by wait(), events(), `attach` and `logs -f`, ten times a second."""
    made = make_run(tmp_path, 2)
    run = Run(made.folder)
    assert [run.has_ended for _ in range(5)] == [False] * 5
    assert len(reads) == 1
    made.save(replace(made.record, state="failed", exit_code=3))
    assert (run.has_ended, run.record.exit_code) == (True, 3)


def test_a_launcher_that_is_killed_is_noticed_in_a_record_that_has_not_changed(tmp_path: Path) -> None:
    """A lost run writes nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        stat = read_stat(process.pid)
        assert stat is not None
        launcher = replace(launchers.this_process(), pid=process.pid, start_time=stat.began)
        run = Run(make_run(tmp_path, 1, launcher=launcher).folder)
        before = run.state
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (before, run.state) == ("running", "lost")
