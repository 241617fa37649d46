"""The logs that are shown: their new lines and progress bars are sent no faster than they reach the screen."""

from __future__ import annotations

import time

from mslaunch.agent.output import Output
from mslaunch.shared.follow import Follower, ShownFollower

LAST_LINES = 1 << 16  # how much of a log is still shown when a job ends far behind
FAR_BEHIND = 1 << 20
MOST_QUEUED = 1 << 24  # last lines of logs are left to the file while this much waits for the launcher
BAR_EVERY = 0.25  # seconds between two states of a rank's progress bar


class ShownLogs:
    """Follows the logs of some ranks."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._followers: dict[int, Follower] = {}
        self._bars: dict[int, tuple[float, str]] = {}
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._followers)

    def clear(self) -> None:
        self._followers.clear()
        self._bars.clear()

    def add(self, rank: int, log: str, raw: bool = False) -> None:
        """Follow a log; `raw`: show it as it is written, also the beginning of a line."""
        self._followers[rank] = Follower(log) if raw else ShownFollower(log)

    def follow(self) -> bool:
        """Send what is new; return whether there may be more at once."""
        more = False
        self._turn += 1
        ranks = list(self._followers)
        for index in range(len(ranks)):
            rank = ranks[(index + self._turn) % len(ranks)]  # in turns, or a chatty one would starve the others
            follower = self._followers[rank]
            if self._output.has_room:
                lines = follower.read()
                if isinstance(follower, ShownFollower):
                    self._send(rank, lines, follower.bar())
                else:
                    self._output.text(rank, lines, follower.rest())
                more = more or follower.behind() > 0
        return more

    def _send(self, rank: int, lines: list[str], text: str) -> None:
        """Send lines, and how the progress bar stands."""
        if lines:
            self._output.lines(rank, lines)
            self._bars.pop(rank, None)  # a line that has ended takes the place of its progress bar
        sent, before = self._bars.get(rank, (0.0, ""))
        now = time.monotonic()
        if text and text != before and now - sent >= BAR_EVERY:
            self._bars[rank] = (now, text)
            self._output.event("bar", rank=rank, text=text)

    def finish(self, rank: int) -> None:
        """Send what a log holds now, in bounds; the file keeps the rest."""
        follower = self._followers.pop(rank, None)
        if follower is None:
            return
        passed, lines = follower.finish(FAR_BEHIND if self._output.waiting < MOST_QUEUED else 0, LAST_LINES)
        if passed:
            lines.insert(0, f"... {passed / 1e6:.1f} MB not shown here: {follower.path}")
        if isinstance(follower, ShownFollower):
            self._send(rank, lines, "")
        else:
            self._output.text(rank, lines, [])
        self._output.flush()
