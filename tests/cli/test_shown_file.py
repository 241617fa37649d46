"""A log that is shown as it grows: a stalled terminal leaves it in the file, not in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mslaunch.cli.console.console import ROOM, Screen, ShownFile
from mslaunch.shared.follow import CHUNK, Follower
from tests.conftest import wait_for

LINE = "x" * 99
LINES = 200_000


class Pipe:
    """A terminal that reads when it is told to."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.text = bytearray()
        self._reader = threading.Thread(target=self._read)

    def start_reading(self) -> None:
        self._reader.start()

    def _read(self) -> None:
        while data := os.read(self.read_end, 1 << 16):
            self.text += data

    def close(self) -> None:
        os.close(self.write_end)
        if self._reader.is_alive():
            self._reader.join()
        os.close(self.read_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "launcher.log"
    path.write_text(f"{LINE}\n" * LINES + "last")
    return path


def waiting(screen: Screen) -> int:
    items = [screen._queue.get() for _ in range(screen._queue.qsize())]
    return sum(len(item[0]) for item in items if item is not None)


def test_a_stalled_terminal_leaves_the_log_in_its_file(pipe: Pipe, log: Path) -> None:
    """However often it is looked at, what waits in memory is bounded."""
    screen = Screen(pipe.write_end)
    shown = ShownFile(Follower(str(log)), screen)
    assert shown.show()
    for _ in range(100):
        shown.show()
    assert waiting(screen) <= ROOM + 2 * CHUNK < LINES * len(LINE)
    pipe.start_reading()


def test_a_terminal_that_reads_is_shown_everything(pipe: Pipe, log: Path) -> None:
    """To the last line, which has no newline."""
    screen = Screen(pipe.write_end)
    shown = ShownFile(Follower(str(log)), screen)
    shown.show()
    pipe.start_reading()
    shown.finish()
    screen.close()
    wait_for(lambda: pipe.text.endswith(b"last\n"), "the last line")
    assert pipe.text.decode() == f"{LINE}\n" * LINES + "last\n"


def test_the_end_is_not_held_up_by_a_terminal_that_reads_nothing(pipe: Pipe, log: Path) -> None:
    """Where the rest is, is said to whoever reads later."""
    screen = Screen(pipe.write_end)
    ShownFile(Follower(str(log)), screen).finish()
    pipe.start_reading()
    wait_for(lambda: f"MB not shown here: {log}\n".encode() in pipe.text, "the place of the rest")
