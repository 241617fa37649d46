"""Launchers below the ranks: a rank that starts msrun, or ranks of its own, trains nothing that anybody watches."""

from __future__ import annotations

import os
import time

from mslaunch.shared.other_launchers import find_launcher

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from mslaunch.agent.launcher_stream import LauncherStream

LOOK_EVERY = 2.0
SHARE = 200  # looking may take this part of the time
LOOKS = 2  # at each process: the first one may see it before its exec
LONGEST = 300


class Process:
    """What /proc/PID/stat says about where a process comes from."""

    def __init__(self, stat: bytes) -> None:
        fields = stat.rsplit(b")", 1)[1].split()
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.began = int(fields[19])


class NestedLaunchers:
    """Reports the first launcher of each rank."""

    def __init__(self, output: LauncherStream) -> None:
        self._output = output
        self._looks: dict[tuple[int, int], int] = {}
        self._reported: set[int] = set()
        self._look_at = time.monotonic() + LOOK_EVERY

    def look(self, ranks: dict[int, int], now: float) -> None:
        """Look from time to time at what has come to be below the ranks, given by pid."""
        if now >= self._look_at:
            began = time.process_time()
            self.search(ranks)
            self._look_at = now + max(LOOK_EVERY, SHARE * (time.process_time() - began))

    def search(self, ranks: dict[int, int]) -> None:
        """Look at every process below the ranks, those included that a rank has left behind in its session."""
        everything = _read_all()
        looks: dict[tuple[int, int], int] = {}
        for pid, process in sorted(everything.items()):
            rank = _rank_of(pid, everything, ranks)
            if rank is None or pid in ranks or rank in self._reported:
                continue
            key = (pid, process.began)
            looks[key] = self._looks.get(key, 0) + 1
            if looks[key] <= LOOKS and _launches(pid, rank, ranks):
                self._reported.add(rank)
                self._output.event("nested-launcher", rank=rank, command=" ".join(_words(pid))[:LONGEST])
        self._looks = looks


def _read_all() -> dict[int, Process]:
    everything = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    everything[int(name)] = Process(file.read())
            except (OSError, IndexError, ValueError):  # it has ended
                continue
    return everything


def _rank_of(pid: int, everything: dict[int, Process], ranks: dict[int, int]) -> int | None:
    """Return the rank that a process descends from, or in whose session an orphan is."""
    session = everything[pid].session
    while pid not in ranks and pid in everything:
        pid = everything[pid].parent
    return ranks.get(pid, ranks.get(session))


def _launches(pid: int, rank: int, ranks: dict[int, int]) -> bool:
    """Tell whether a process is a launcher of several processes, or a rank that another launcher has started."""
    launcher = find_launcher(_words(pid))
    if launcher is not None:
        return launcher.count != "1"
    env = _environment(pid)
    own = next(_environment(root) for root, number in ranks.items() if number == rank)
    is_foreign = env.get("RANK_ID", "") not in ("", str(rank), own.get("RANK_ID"))
    return is_foreign and env.get("RANK_SIZE", "") not in ("", "1")


def _words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read(1 << 16)).rstrip("\0").split("\0")
    except OSError:
        return []


def _environment(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = os.fsdecode(file.read(1 << 20)).split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
