"""A progress bar with its rate while bytes are moved, and an end that leaves nothing half done."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TextIO

from mslaunch.checkpoint.moving.shard_writer import Progress
from mslaunch.errors import MslaunchError, signal_code
from mslaunch.text import byte_count


@contextmanager
def progress_bar() -> Iterator[Callable[[int], Progress]]:
    """Yield what shows progress towards a total on a terminal; turn SIGTERM, SIGHUP and Ctrl-C into an orderly end."""

    def end(number: int, _: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        error = MslaunchError("interrupted; nothing was kept.")
        error.exit_code = signal_code(number)
        raise error

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        with ExitStack() as bars:
            yield lambda total: bars.enter_context(_bar(total))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(total: int) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as shown
    from rich.console import Console

    columns = (shown.BarColumn(), shown.DownloadColumn(), shown.TransferSpeedColumn(), shown.TimeRemainingColumn())
    with shown.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def written_words(nbytes: int, seconds: float) -> str:
    """`2.3 GB in 1.9 s, 1.2 GB/s`; a short time tells no rate."""
    if seconds < 0.1:
        return size_words(nbytes)
    return f"{size_words(nbytes)} in {seconds:.1f} s, {size_words(int(nbytes / seconds))}/s"


def size_words(nbytes: int) -> str:
    for size, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


PATIENCE = 2.0  # seconds without a line
_PAUSE = 0.1  # seconds between two states of the line


class ReadingLine:
    """Shows bytes read, of how many, and the rate; on a terminal only, and not for a moment's work."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._began = clock()
        self._next = self._began + PATIENCE if out.isatty() else float("inf")
        self._is_shown = False

    def show(self, done: int, total: int) -> None:
        """Show how much has been read."""
        now = self._clock()
        if now < self._next:
            return
        rate = byte_count(int(done / (now - self._began)))
        print(f"\r{byte_count(done)} of {byte_count(total)} read, {rate}/s\x1b[K", end="", file=self._out, flush=True)
        self._is_shown, self._next = True, now + _PAUSE

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            print("\r\x1b[K", end="", file=self._out, flush=True)
