"""How much of a host's files may be on its way to the launcher at once."""

from __future__ import annotations

import time
from collections import deque

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable

LEAST = 1 << 17
MOST = 1 << 23
LONGEST_PIECE = 1 << 20
PIECES = 4  # so many fill the window, so that one is read while another one travels
QUICK = 0.25
SLOW = 1.0


class Window:
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
