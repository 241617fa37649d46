"""The agent's side of the stream to the launcher: never blocks, never loses an event."""

from __future__ import annotations

import os
import time
from collections import deque

from mslaunch.agent import wire

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

ROOM = 1 << 18  # log lines wait in their file while more than this is on its way


class Output:
    """A queue in front of a pipe. When nobody reads any more, what is queued is dropped: the run is over."""

    def __init__(self, end: int, host: str) -> None:
        self._end = end
        self._host = host
        self._queue: deque[bytes] = deque()
        self.waiting = 0
        self._unshown = 0
        os.set_blocking(end, False)

    def open(self) -> None:
        self._put(wire.MAGIC)

    def event(self, name: str, **data: Any) -> None:
        data.setdefault("time", time.time())
        self._put(wire.encode({"ev": name, "host": self._host, **data}))

    def lines(self, rank: int, lines: list[str]) -> None:
        """Send lines of a log. How many bytes of them are not yet on the screen is counted."""
        size = sum(map(len, lines)) + len(lines)
        self._unshown += size
        self.event("lines", rank=rank, lines=lines, bytes=size)

    def text(self, rank: int, lines: list[str], rest: list[str]) -> None:
        """Send lines and the beginning of the next one, to be shown as they are."""
        if lines or rest:
            size = sum(map(len, lines + rest)) + len(lines)
            self._unshown += size
            self.event("lines", rank=rank, lines=[*lines, *(rest or [""])], bytes=size, raw=True)

    def file(self, piece: dict[str, Any]) -> None:
        """Send a piece of a file; it counts as lines do."""
        self._unshown += len(piece["data"])
        self.event("file", bytes=len(piece["data"]), **piece)

    def shown(self, size: int) -> None:
        self._unshown -= size

    @property
    def has_room(self) -> bool:
        """Tell whether more lines may be sent: not while the pipe or the screen is behind. The file is the buffer."""
        return self.waiting < ROOM and self._unshown < ROOM

    def flush(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                sent = os.write(self._end, data)
            except BlockingIOError:
                return
            except OSError:
                self._queue.clear()
                self.waiting = 0
                return
            self.waiting -= sent
            if sent < len(data):
                self._queue[0] = data[sent:]
                return
            self._queue.popleft()

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self.waiting += len(data)
