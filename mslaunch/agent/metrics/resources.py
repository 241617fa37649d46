"""What ranks and their host use: processor, memory, files and network, as the kernel counts it in /proc."""

from __future__ import annotations

import os
import time

from mslaunch.shared.processes import read_stats, root_of

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterable

    from mslaunch.shared.processes import ProcessStat

MOST_THREADS = 64  # of a rank, of which it is read how long they waited for a core
SEARCH_SHARE = 50  # looking for new processes may take a fiftieth of the time
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage:
    """What the processes of a rank have used by now."""

    def __init__(self, processes: dict[int, ProcessStat]) -> None:
        self.began = {pid: process.began for pid, process in processes.items()}
        self.ticks = {pid: process.ticks for pid, process in processes.items()}
        self.io = _io_counts(processes)
        self.scheduled = _scheduled(processes)


class Resources:
    """Looks at the processes of all ranks of this host at once, and at the host. `folder` is the run's."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._members: dict[int, list[int]] = {}
        self._search_at = 0.0
        self._ranks: dict[int, Usage] = {}
        self._stopped: set[int] = set()
        self._at: float | None = None
        self._boot_ticks = 0.0
        self._host: dict[str, int] = {}

    def look(self, pids: dict[int, int]) -> list[tuple[int | None, dict[str, float]]]:
        """Return what these ranks, given by pid, have used since the look before, and the host, which is None."""
        now = time.monotonic()
        seconds = now - self._at if self._at is not None else 0.0
        rows: list[tuple[int | None, dict[str, float]]] = []
        for rank, processes in self._find(pids, now).items():
            usage = Usage(processes)
            values: dict[str, float] = {
                "memory": sum(process.pages for process in processes.values()) * _PAGE,
                "threads": sum(process.threads for process in processes.values()),
            }
            before = self._ranks.get(rank)
            if before is not None and seconds > 0:
                values.update(_rates(before, usage, seconds, self._boot_ticks))
            self._ranks[rank] = usage
            self._add_stopped(rank, processes, values)
            rows.append((rank, values))
        rows.append((None, self._host_values(seconds)))
        self._at = now
        self._boot_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS
        return rows

    def _find(self, pids: dict[int, int], now: float) -> dict[int, dict[int, ProcessStat]]:
        """Return the processes of each rank. Where /proc is large, new ones are looked for less often."""
        if now >= self._search_at or pids.keys() - self._members.keys():
            began = time.process_time()
            stats = read_stats()
            self._members = _members(pids, stats)
            self._search_at = now + SEARCH_SHARE * (time.process_time() - began)
        else:
            stats = read_stats(pid for rank in pids for pid in self._members[rank])
        running: dict[int, dict[int, ProcessStat]] = {}
        for rank in pids:
            for pid in self._members[rank]:
                if pid in stats and not _has_ended(stats[pid]):
                    running.setdefault(rank, {})[pid] = stats[pid]
        return running

    def _add_stopped(self, rank: int, processes: dict[int, ProcessStat], values: dict[str, float]) -> None:
        """Tell that a process of a rank is stopped by a signal, and when that is over."""
        if any(process.state == b"T" for process in processes.values()):
            self._stopped.add(rank)
            values["stopped"] = 1
        elif rank in self._stopped:
            self._stopped.remove(rank)
            values["stopped"] = 0

    def _host_values(self, seconds: float) -> dict[str, float]:
        values: dict[str, float] = {}
        try:
            values["load"] = round(os.getloadavg()[0], 2)
            values.update(_memory())
        except (OSError, ValueError, IndexError, KeyError):  # a kernel or a container without it
            pass
        try:
            disk = os.statvfs(self._folder)
            values.update(disk_free=disk.f_bavail * disk.f_frsize, disk_total=disk.f_blocks * disk.f_frsize)
        except OSError:
            pass
        counters = _counters()
        for name, count in counters.items():
            if name in self._host and seconds > 0:
                values[name] = round(max(0, count - self._host[name]) / seconds)
        self._host = counters
        return values


def _has_ended(stat: ProcessStat) -> bool:
    """Tell whether a process has ended, or is ending: its memory is the first thing that it gives back.

    A process that was stopped right after its fork may not count any memory yet.
    """
    return stat.state in (b"Z", b"X") or (not stat.pages and stat.state != b"T")


def _members(roots: dict[int, int], stats: dict[int, ProcessStat]) -> dict[int, list[int]]:
    """Return the processes of each rank: its root, and all that descend from it."""
    ranks = {pid: rank for rank, pid in roots.items()}
    members: dict[int, list[int]] = {rank: [] for rank in roots}
    for pid in stats:
        root = root_of(pid, ranks, stats)
        if root is not None:
            members[ranks[root]].append(pid)
    return members


def _rates(before: Usage, usage: Usage, seconds: float, boot_ticks: float) -> dict[str, float]:
    """Return what was used since. A process that was there and is found only now counts from now on.

    What a child has used is its parent's when it ends, so that sums go on growing.
    """
    late = [pid for pid, began in usage.began.items() if began < boot_ticks and before.began.get(pid) != began]
    ticks = sum(usage.ticks.values()) - sum(before.ticks.values()) - sum(usage.ticks[pid] for pid in late)
    values: dict[str, float] = {"cpu": round(max(0, ticks) / _TICKS / seconds, 3)}
    if usage.io and before.io:
        for index, name in enumerate(("read_rate", "write_rate")):
            count = _total(usage.io, index) - _total(before.io, index)
            count -= sum(usage.io[pid][index] for pid in late if pid in usage.io)
            values[name] = round(max(0, count) / seconds)
    same = [tid for tid in usage.scheduled if tid in before.scheduled]
    if same:
        ran, waited = (sum(usage.scheduled[t][i] - before.scheduled[t][i] for t in same) for i in (0, 1))
        values["cpu_wait"] = round(waited / (ran + waited), 3) if waited > 0 and ran >= 0 else 0.0
    return values


def _total(counts: dict[int, tuple[int, int]], index: int) -> int:
    return sum(count[index] for count in counts.values())


def _io_counts(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the bytes that processes have read and written, from or to disk, cache, pipe or another machine's disk."""
    counts = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                lines = file.read().split(b"\n")
            counts[pid] = int(lines[0].split()[1]), int(lines[1].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return counts


def _scheduled(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return for how long threads have run, and have waited for a core, in nanoseconds: the first ones of a rank."""
    times: dict[int, tuple[int, int]] = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads[: MOST_THREADS - len(times)]:
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                    ran, waited = file.read().split()[:2]
                times[int(thread)] = int(ran), int(waited)
            except (OSError, ValueError):
                continue
    return times


def _memory() -> dict[str, float]:
    with open("/proc/meminfo", "rb") as file:
        lines = dict(line.split(b":", 1) for line in file)
    total, free = (int(lines[name].split()[0]) << 10 for name in (b"MemTotal", b"MemAvailable"))
    return {"memory_used": total - free, "memory_total": total}


def _counters() -> dict[str, int]:
    """Return what the kernel counts from its start on: bytes from and to swap space and network."""
    counters: dict[str, int] = {}
    try:
        with open("/proc/vmstat", "rb") as file:
            pages = [int(line.split()[1]) for line in file if line.startswith((b"pswpin ", b"pswpout "))]
        counters["swap_rate"] = sum(pages) * _PAGE
        with open("/proc/net/dev", "rb") as file:
            links = [line.split(b":", 1) for line in file if b":" in line]
        columns_of_links = [text.split() for name, text in links if name.strip() != b"lo"]
        counters["net_received"] = sum(int(columns[0]) for columns in columns_of_links)
        counters["net_sent"] = sum(int(columns[8]) for columns in columns_of_links)
    except (OSError, ValueError, IndexError):
        pass
    return counters
