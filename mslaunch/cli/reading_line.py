"""The line on a terminal that shows how far a long reading is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from mslaunch.words import byte_count

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
        self._write(f"\r{byte_count(done)} of {byte_count(total)} read, {rate}/s\x1b[K")
        self._is_shown, self._next = True, now + _PAUSE

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
