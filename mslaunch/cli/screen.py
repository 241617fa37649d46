"""Writing to the screen from a thread of its own: a terminal that is stopped or gone never holds up a job."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

PATIENCE = 2.0  # what a stalled reader gets at the end


class Screen:
    """A queue in front of a file descriptor. When nobody reads any more, what is written goes nowhere."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._queue: queue.SimpleQueue[tuple[bytes, Callable[[], object] | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.is_terminal = os.isatty(end)

    def write(self, text: str, then: Callable[[], object] | None = None) -> None:
        """Have text written, and `then` called once it is."""
        self._queue.put((text.encode("utf-8", "backslashreplace"), then))

    def close(self) -> None:
        """Wait until all is written; not for ever, if nobody reads."""
        self._queue.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        gone = False
        while (item := self._queue.get()) is not None:
            data, then = item
            try:
                while data and not gone:
                    data = data[os.write(self._end, data) :]
            except OSError:
                gone = True
            if then is not None:
                then()
