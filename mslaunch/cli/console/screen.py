"""Writing to the screen from a thread of its own: a terminal that is stopped or gone never holds up a job."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

PATIENCE = 2.0  # what a stalled reader gets at the end
BEHIND = 16
ROOM = 1 << 22  # lines wait in their file while more than this is to be shown


class Screen:
    """A queue in front of a file descriptor. When nobody reads any more, what is written goes nowhere."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._queue: queue.SimpleQueue[tuple[bytes, Callable[[], object] | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.is_terminal = os.isatty(end) and os.environ.get("TERM") != "dumb"

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal as it is now."""
        try:
            columns, lines = os.get_terminal_size(self._end)
        except OSError:
            columns, lines = 0, 0
        return columns or 80, lines or 24

    @property
    def is_behind(self) -> bool:
        """Tell whether much is still to be written: what will be drawn again soon need not be drawn now."""
        return self._queue.qsize() > BEHIND

    def uncover(self) -> bool:
        """End what hides the screen; return whether something did until now."""
        return False

    def write(self, text: str, then: Callable[[], object] | None = None) -> None:
        """Have text written, and `then` called once it is."""
        self._queue.put((text.encode("utf-8", "backslashreplace"), then))

    def close(self) -> None:
        """Wait until all is written; not for ever, if nobody reads."""
        self._queue.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        gone = False
        while (piece := self._queue.get()) is not None:
            data, then = piece
            try:
                while data and not gone:
                    data = data[os.write(self._end, data) :]
            except OSError:
                gone = True
            if then is not None:
                then()


class GrowingFile(Protocol):
    """A reader of a file that grows."""

    path: str

    def read(self) -> list[str]: ...

    def behind(self) -> int: ...

    def rest(self) -> list[str]: ...


class ShownFile:
    """Shows a file as it grows, no faster than the screen takes it: the file is the buffer."""

    def __init__(self, file: GrowingFile, screen: Screen) -> None:
        self._file = file
        self._screen = screen
        self._sent = 0
        self._shown = 0

    def show(self) -> bool:
        """Show what there is room for; return whether there was something."""
        has_shown = False
        while self._sent - self._shown < ROOM and self._file.behind():
            lines = self._file.read()
            has_shown = has_shown or bool(lines)
            self._write(lines)
        return has_shown

    def finish(self) -> None:
        """Show the rest, for as long as somebody reads it; where nobody does, say where it is."""
        before, since = self._shown, time.monotonic()
        while self._file.behind() and time.monotonic() - since < PATIENCE:
            if not self.show():
                time.sleep(0.01)
            if self._shown != before:
                before, since = self._shown, time.monotonic()
        if left := self._file.behind():
            self._write([f"... {left / 1e6:.1f} MB not shown here: {self._file.path}"])
        else:
            self._write(self._file.rest())

    def _write(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        self._sent += len(text)
        self._screen.write(text, lambda: self._note_shown(len(text)))

    def _note_shown(self, size: int) -> None:
        self._shown += size
