"""A progress bar with its rate while bytes are moved, and an end that leaves nothing half done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mslaunch.errors import MslaunchError

_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


class Interrupted(MslaunchError):
    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__("interrupted; nothing was kept.")


@contextmanager
def moving(total: int) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal; turn SIGTERM, SIGHUP and Ctrl-C into an orderly end."""

    def end(number: int, _: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        with _bar(total) as progress:
            yield progress
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def size_words(nbytes: int) -> str:
    for size, unit in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
