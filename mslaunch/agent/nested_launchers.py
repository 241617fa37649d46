"""Launchers below the ranks: a rank that starts msrun, or ranks of its own, trains nothing that anybody watches."""

from __future__ import annotations

import os
import time

from mslaunch.shared.other_launchers import find_launcher
from mslaunch.shared.processes import environment_of, read_stats, root_of

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from mslaunch.agent.launcher_stream import LauncherStream

LOOK_EVERY = 2.0
SHARE = 200  # looking may take this part of the time
LOOKS = 2  # at each process: the first one may see it before its exec
LONGEST = 300


class NestedLaunchers:
    """Reports the first launcher of each rank."""

    def __init__(self, output: LauncherStream) -> None:
        self._output = output
        self._looks: dict[tuple[int, int], int] = {}
        self._reported: set[int] = set()
        self._look_at = time.monotonic() + LOOK_EVERY

    def look(self, ranks: dict[int, int], now: float) -> None:
        """Look from time to time for new processes below the ranks, given by pid."""
        if now >= self._look_at:
            began = time.process_time()
            self.search(ranks)
            self._look_at = now + max(LOOK_EVERY, SHARE * (time.process_time() - began))

    def search(self, ranks: dict[int, int]) -> None:
        """Look at every process below the ranks, those included that a rank has left behind in its session."""
        stats = read_stats()
        looks: dict[tuple[int, int], int] = {}
        for pid, stat in sorted(stats.items()):
            rank = ranks.get(root_of(pid, ranks, stats) or stat.session)
            if rank is None or pid in ranks or rank in self._reported:
                continue
            key = (pid, stat.began)
            looks[key] = self._looks.get(key, 0) + 1
            if looks[key] <= LOOKS and _launches(pid, rank, ranks):
                self._reported.add(rank)
                self._output.event("nested-launcher", rank=rank, command=" ".join(_command_line(pid))[:LONGEST])
        self._looks = looks


def _launches(pid: int, rank: int, ranks: dict[int, int]) -> bool:
    """Tell whether a process is a launcher of several processes, or a rank that another launcher has started."""
    launcher = find_launcher(_command_line(pid))
    if launcher is not None:
        return launcher.count != "1"
    environment = environment_of(pid)
    own = next(environment_of(root) for root, number in ranks.items() if number == rank)
    is_foreign = environment.get("RANK_ID", "") not in ("", str(rank), own.get("RANK_ID"))
    return is_foreign and environment.get("RANK_SIZE", "") not in ("", "1")


def _command_line(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(1 << 16)).rstrip("\0").split("\0")
    except OSError:
        return []
