"""What ranks and their host use: processor, memory, files and network, as the kernel counts it in /proc."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Found = dict[int, float]

MOST_THREADS = 64  # of a rank, of which it is read how long they waited for a core
SEARCH_SHARE = 50  # looking for new processes may take a fiftieth of the time
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process:
    """One process, as /proc/PID/stat has it."""

    def __init__(self, stat: bytes) -> None:
        fields = stat.rsplit(b")", 1)[1].split()
        self.state = fields[0]
        self.parent = int(fields[1])
        self.ticks = sum(map(int, fields[11:15]))  # with those of children that it has waited for
        self.threads = int(fields[17])
        self.began = int(fields[19])
        self.memory = int(fields[21]) * _PAGE

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or is ending: its memory is the first thing that it gives back."""
        return self.state in (b"Z", b"X") or not self.memory


class Usage:
    """What the processes of a rank have used by now."""

    def __init__(self, processes: dict[int, Process]) -> None:
        self.began = {pid: process.began for pid, process in processes.items()}
        self.ticks = {pid: process.ticks for pid, process in processes.items()}
        self.io = {pid: found for pid in processes if (found := _io(pid)) is not None}
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
            values = _present(processes)
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

    def _find(self, pids: dict[int, int], now: float) -> dict[int, dict[int, Process]]:
        """Return the processes of each rank. Where /proc is large, new ones are looked for less often."""
        if now >= self._search_at or pids.keys() - self._members.keys():
            began = time.process_time()
            everything = _read(int(name) for name in os.listdir("/proc") if name.isdigit())
            self._members = _below(pids, everything)
            self._search_at = now + SEARCH_SHARE * (time.process_time() - began)
        else:
            everything = _read(pid for rank in pids for pid in self._members[rank])
        found: dict[int, dict[int, Process]] = {}
        for rank in pids:
            present = ((pid, everything[pid]) for pid in self._members[rank] if pid in everything)
            processes = {pid: process for pid, process in present if not process.has_ended}
            if processes:
                found[rank] = processes
        return found

    def _add_stopped(self, rank: int, processes: dict[int, Process], values: dict[str, float]) -> None:
        """Tell that a process of a rank is stopped by a signal, and when that is over."""
        if any(process.state == b"T" for process in processes.values()):
            self._stopped.add(rank)
            values["stopped"] = 1
        elif rank in self._stopped:
            self._stopped.remove(rank)
            values["stopped"] = 0

    def _host_values(self, seconds: float) -> dict[str, float]:
        values: dict[str, float] = {}
        for read in (_load, _memory, _disk(self._folder)):
            try:
                values.update(read())
            except (OSError, ValueError, IndexError, KeyError):  # a kernel or a container without it
                continue
        counters = _counters()
        for name, count in counters.items():
            if name in self._host and seconds > 0:
                values[name] = round(max(0, count - self._host[name]) / seconds)
        self._host = counters
        return values


def _read(pids: Iterable[int]) -> dict[int, Process]:
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                found[pid] = Process(file.read())
        except (OSError, IndexError, ValueError):  # it has ended
            continue
    return found


def _below(roots: dict[int, int], processes: dict[int, Process]) -> dict[int, list[int]]:
    """Return the processes of each rank: the one that is given, and all that descend from it."""
    ranks = {pid: rank for rank, pid in roots.items()}
    members: dict[int, list[int]] = {rank: [] for rank in roots}
    for pid in processes:
        above = pid
        while above not in ranks and above in processes:
            above = processes[above].parent
        if above in ranks:
            members[ranks[above]].append(pid)
    return members


def _present(processes: dict[int, Process]) -> dict[str, float]:
    return {
        "memory": sum(process.memory for process in processes.values()),
        "threads": sum(process.threads for process in processes.values()),
    }


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


def _io(pid: int) -> tuple[int, int] | None:
    """Return how many bytes a process has read and written, from or to disk, cache, pipe or another machine's disk."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = file.read().split(b"\n")
        return int(lines[0].split()[1]), int(lines[1].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _scheduled(processes: dict[int, Process]) -> dict[int, tuple[int, int]]:
    """Return for how long threads have run, and have waited for a core, in nanoseconds: the first ones of a rank."""
    found: dict[int, tuple[int, int]] = {}
    for pid in processes:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for tid in threads[: MOST_THREADS - len(found)]:
            try:
                with open(f"/proc/{pid}/task/{tid}/schedstat", "rb") as file:
                    ran, waited = file.read().split()[:2]
                found[int(tid)] = int(ran), int(waited)
            except (OSError, ValueError):
                continue
    return found


def _load() -> dict[str, float]:
    return {"load": round(os.getloadavg()[0], 2)}


def _memory() -> dict[str, float]:
    with open("/proc/meminfo", "rb") as file:
        lines = dict(line.split(b":", 1) for line in file)
    total, free = (int(lines[name].split()[0]) << 10 for name in (b"MemTotal", b"MemAvailable"))
    return {"memory_used": total - free, "memory_total": total}


def _disk(folder: str) -> Callable[[], dict[str, float]]:
    def read() -> dict[str, float]:
        found = os.statvfs(folder)
        return {"disk_free": found.f_bavail * found.f_frsize, "disk_total": found.f_blocks * found.f_frsize}

    return read


def _counters() -> dict[str, int]:
    """Return what the kernel counts from its start on: bytes from and to swap space and network."""
    counters: dict[str, int] = {}
    try:
        with open("/proc/vmstat", "rb") as file:
            pages = [int(line.split()[1]) for line in file if line.startswith((b"pswpin ", b"pswpout "))]
        counters["swap_rate"] = sum(pages) * _PAGE
        with open("/proc/net/dev", "rb") as file:
            links = [line.split(b":", 1) for line in file if b":" in line]
        numbers = [numbers.split() for name, numbers in links if name.strip() != b"lo"]
        counters["net_received"] = sum(int(one[0]) for one in numbers)
        counters["net_sent"] = sum(int(one[8]) for one in numbers)
    except (OSError, ValueError, IndexError):
        pass
    return counters
