"""The line that shows how far `mslaunch diagnose` has read: on a terminal, when it takes long, and nowhere else."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from mslaunch.cli.console.progress_bar import PATIENCE, ReadingLine
from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.logs.sources import files_of
from tests.beds.terminal_bed import run_in_terminal
from tests.conftest import Bench

CLEARED = "\r\x1b[K"


class Clock:
    """A clock that goes on by a second whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal to write to, and the side on which its text arrives."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as out:
        yield out, ours
    os.close(ours)


def write_logs(folder: Path) -> None:
    """Write logs of 4 MB: some blocks each."""
    for rank in range(2):
        (folder / f"worker_{rank}.log").write_text("epoch: 1 step: 1, loss is 3\n" * 75000)


def test_a_terminal_shows_how_far_reading_is(tmp_path: Path, terminal: tuple[TextIO, int]) -> None:
    """The line is written over as the logs are read, and removed at the end."""
    out, ours = terminal
    write_logs(tmp_path)
    line = ReadingLine(out, Clock())
    read_sources(files_of(tmp_path), line.show)
    line.clear()
    shown = ""
    while not shown.endswith(f"/s{CLEARED[1:]}{CLEARED}"):
        shown += os.read(ours, 1 << 16).decode()
    states = [state.removesuffix("\x1b[K") for state in shown.removesuffix(CLEARED).split("\r") if state]
    assert len(states) > 5
    assert all(" of 4.2 MB read, " in state and state.endswith("/s") for state in states), states
    assert states[-1].startswith("4.2 MB of 4.2 MB read")


def test_the_line_comes_after_some_patience(terminal: tuple[TextIO, int]) -> None:
    """Work of a moment shows none, and leaves nothing to remove."""
    out, ours = terminal
    line = ReadingLine(out, iter([0.0, PATIENCE / 2, PATIENCE - 0.1]).__next__)
    line.show(1, 2)
    line.show(2, 2)
    line.clear()
    out.write("end")
    out.flush()
    assert os.read(ours, 100) == b"end"


def test_a_file_gets_no_line(tmp_path: Path) -> None:
    """What is no terminal is not written to, however long it takes."""
    write_logs(tmp_path)
    with (tmp_path / "errors").open("w+") as out:
        line = ReadingLine(out, Clock())
        read_sources(files_of(tmp_path), line.show)
        line.clear()
        assert out.tell() == 0


def test_quick_work_of_the_command_shows_no_line(bench: Bench) -> None:
    """Neither on a terminal nor elsewhere."""
    bench.write("logs/worker_1.log", "Traceback (most recent call last):\nValueError: one\n")
    shown = run_in_terminal(bench, "diagnose", "logs")
    assert "ValueError: one" in shown
    assert CLEARED not in shown
    assert bench.mslaunch("diagnose", "logs").stderr == ""
