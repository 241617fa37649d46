"""Whether ranks still print or compute: judged by their logs and by the CPU time of all their processes."""

from __future__ import annotations

import os

from mslaunch.shared import processes

WINDOW = 1.0  # shorter ones are too short for a clock tick of 10 ms to mean anything
BUSY_SHARE = 0.1  # of a core: what MindSpore's background threads use in a rank that waits is below 0.05


class RankActivity:
    """What was last seen of one rank, and since when nothing has changed."""

    def __init__(self, ticks: int, log: tuple[float, int]) -> None:
        self.ticks = ticks
        self.log = log
        self.silent = 0.0
        self.idle = 0.0

    def look(self, ticks: int, log: tuple[float, int], seconds: float) -> None:
        """Count these seconds as silent unless the log has grown, and as idle unless the rank has also computed."""
        printed = log != self.log
        used = (ticks - self.ticks) / os.sysconf("SC_CLK_TCK")
        computed = ticks < self.ticks or used >= BUSY_SHARE * seconds  # less than before: a process has ended
        self.silent += seconds
        self.idle += seconds
        if printed:
            self.silent = 0.0
        if printed or computed:
            self.idle = 0.0
        self.ticks, self.log = ticks, log


class ActivityWatch:
    """Looks at the ranks of this host from time to time, by a clock that stands still while the agent does."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._ranks: dict[int, RankActivity] = {}

    def look(self, ranks: dict[int, tuple[int, str]], now: float) -> dict[str, dict[int, float]]:
        """Return for how many seconds each of these ranks, given by pid and log, has been silent, and idle as well."""
        seconds = now - self._at
        if seconds >= WINDOW or not self._ranks:
            self._at = now
            ticks = processes.cpu_ticks([pid for pid, _ in ranks.values()])
            for rank, (pid, log) in ranks.items():
                seen = (ticks[pid], _written(log))
                self._ranks.setdefault(rank, RankActivity(*seen)).look(*seen, seconds)
        seen_ranks = {rank: activity for rank, activity in self._ranks.items() if rank in ranks}
        return {
            "silent": {rank: activity.silent for rank, activity in seen_ranks.items()},
            "idle": {rank: activity.idle for rank, activity in seen_ranks.items()},
        }


def _written(log: str) -> tuple[float, int]:
    try:
        stat = os.stat(log)
    except OSError:
        return 0.0, 0
    return stat.st_mtime, stat.st_size
