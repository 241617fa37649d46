"""A clock that stands still while this process does not run: stopped by a signal, starved, or asleep with its machine.

Whoever blames silence on a peer measures it with this clock. A turn of the own loop that took longer than a turn can
take counts as one turn: after it, what the peer sent meanwhile is read first.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_TURN = 1.5  # both loops wait at most 1 s for something to happen


class RunningClock:
    """Seconds in which this process ran; `advance` is called once in every turn of its loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turned = clock()
        self.now = 0.0

    def advance(self) -> float:
        """Count the time since the last turn, or one turn if it was longer, and return the sum."""
        before, self._turned = self._turned, self._clock()
        self.now += min(self._turned - before, LONGEST_TURN)
        return self.now
