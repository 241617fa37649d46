"""The agent's side of the stream to the launcher: never blocks, never loses an event."""

from __future__ import annotations

import os
import time
from collections import deque

from mslaunch.shared import wire

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


LEAST = 1 << 17
MOST = 1 << 23
LONGEST_PIECE = 1 << 20
PIECES = 4  # so many fill the window, so that one is read while another one travels
QUICK = 0.25
SLOW = 1.0


class SendWindow:
    """Bytes that were sent and are not yet written over there: as many as arrive within a moment.

    Events queue up behind them in the connection, so a slow line gets a small window and a fast one a large window.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._size = LEAST
        self._on_its_way = 0
        self._sent: deque[float] = deque()

    @property
    def has_room(self) -> bool:
        return self._on_its_way < self._size

    @property
    def is_empty(self) -> bool:
        """Tell whether all that was sent is written."""
        return not self._sent

    @property
    def piece(self) -> int:
        """How long the next piece may be."""
        return min(LONGEST_PIECE, self._size // PIECES)

    def sent(self, size: int) -> None:
        self._on_its_way += size
        self._sent.append(self._clock())

    def written(self, size: int) -> None:
        """Count a piece as written; they are written in the order in which they were sent."""
        self._on_its_way -= size
        took = self._clock() - self._sent.popleft() if self._sent else 0.0
        if took < QUICK:
            self._size = min(2 * self._size, MOST)
        elif took > SLOW:
            self._size = max(self._size // 2, LEAST)


ROOM = 1 << 18  # log lines wait in their file while more than this is on its way


class LauncherStream:
    """Two queues in front of a pipe: events, and pieces of files, which go when no event waits.

    When nobody reads any more, what is queued is dropped: the run is over.
    """

    def __init__(self, end: int, host: str) -> None:
        self._end = end
        self._host = host
        self._queue: deque[bytes] = deque()
        self._piece = b""
        self._begun = memoryview(b"")  # a record of which a part is in the pipe
        self.waiting = 0  # bytes of events, of lines among them, that wait for the pipe
        self.unshown = 0  # bytes of lines that are not yet on the screen
        self._problems: set[str] = set()
        self.window = SendWindow()
        os.set_blocking(end, False)
        self._put(wire.MAGIC)

    def event(self, name: str, **data: Any) -> None:
        data.setdefault("time", time.time())
        self._put(wire.encode({"ev": name, "host": self._host, **data}))

    def note(self, text: str) -> None:
        self.event("agent-note", text=text)

    def report_problem(self, error: OSError) -> None:
        """Send what went wrong here, each problem once."""
        text = f"the agent could not do all that it should: {error}"
        if text not in self._problems:
            self._problems.add(text)
            self.note(text)

    def start_failed(self, role: str, rank: int | None, error: OSError) -> None:
        self.event("start-failed", role=role, rank=rank, why=error.strerror or str(error))

    def lines(self, rank: int, lines: list[str], **data: Any) -> None:
        """Send lines of a log. How many bytes of them are not yet on the screen is counted."""
        size = sum(map(len, lines)) + len(lines)
        self.unshown += size
        self.event("lines", rank=rank, lines=lines, bytes=size, **data)

    def text(self, rank: int, lines: list[str], rest: list[str]) -> None:
        """Send lines and the beginning of the next one, to be shown as they are."""
        if lines or rest:
            self.lines(rank, [*lines, *(rest or [""])], raw=True)

    def file(self, path: str, offset: int, data: bytes) -> None:
        self.window.sent(len(data))
        event = {"ev": "file", "host": self._host, "time": time.time(), "path": path, "offset": offset}
        self._piece = wire.encode_with_data(event, data)

    @property
    def has_room(self) -> bool:
        """Tell whether more lines may be sent: not while the pipe or the screen is behind. The file is the buffer."""
        return self.waiting < ROOM and self.unshown < ROOM

    @property
    def has_room_for_a_piece(self) -> bool:
        return not self._piece and self.window.has_room

    @property
    def is_waiting(self) -> bool:
        return bool(self._begun or self._queue or self._piece)

    def flush(self) -> None:
        while self.is_waiting:
            if not self._begun and self._queue:
                self._begun = memoryview(self._queue.popleft())
                self.waiting -= len(self._begun)
            elif not self._begun:
                self._begun, self._piece = memoryview(self._piece), b""
            try:
                sent = os.write(self._end, self._begun)
            except BlockingIOError:
                return
            except OSError:
                self._queue.clear()
                self._piece, self._begun, self.waiting = b"", memoryview(b""), 0
                return
            self._begun = self._begun[sent:]

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self.waiting += len(data)
