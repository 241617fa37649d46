"""What ranks, their host and its devices use: as /proc counts it, and as npu-smi and nvidia-smi report it.

The tools are child processes that nobody waits for.
"""

from __future__ import annotations

import os
import signal
import time

from mslaunch.shared.processes import read_stats, root_of
from mslaunch.shared.visible_devices import DEVICE_FILES, by_file, without_limits

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mslaunch.shared.processes import ProcessStat

    Devices = dict[int, dict[str, float]]

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


EVERY = 5.0  # seconds between two questions; npu-smi takes one or two of them
LONGEST = 20.0  # seconds after which a tool is ended
MOST_FAILURES = 3  # a tool that fails so often in a row is not asked again
MOST_OUTPUT = 1 << 20
_MB = 1 << 20
_GPU_VALUES = ("utilisation", "memory_used", "memory_total", "temperature", "power")


def read_nvidia_smi(text: str) -> Devices:
    """Read a line of numbers for each GPU; what a GPU cannot tell is no number."""
    devices: Devices = {}
    for line in text.splitlines():
        index, *cells = [cell.strip() for cell in line.split(",")]
        if index.isdigit() and len(cells) == len(_GPU_VALUES):
            values = devices[int(index)] = {}
            for name, cell in zip(_GPU_VALUES, cells):
                number = _number(cell)
                if number is not None:
                    values[name] = number * _MB if "memory" in name else number
    return devices


def read_npu_smi(text: str) -> Devices:
    """Read the table of `npu-smi info`, in which each chip has two lines of three cells.

    A chip is known by Phy-ID or Device where the table has such a column, else by the number of its NPU.
    """
    devices: Devices = {}
    first: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.replace("/", " / ").split() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or not cells[0] or not cells[0][0].isdigit():
            first = []
        elif not first:
            first = cells
        else:
            numbers = cells[0]
            devices[int(numbers[1] if len(numbers) > 1 else first[0][0])] = _npu_values(first[2], cells[2])
            first = []
    return devices


def _npu_values(first: list[str], second: list[str]) -> dict[str, float]:
    """Power and temperature stand in the first line; use of AI cores, memory and on-chip memory in the second."""
    values: dict[str, float] = {}
    for name, cells in (("power", first[:1]), ("temperature", first[1:2]), ("utilisation", second[:1])):
        number = _number("".join(cells))
        if number is not None:
            values[name] = number
    for at in range(1, len(second) - 1):
        if second[at] == "/":  # chips with on-chip memory show 0 / 0 for the other one
            used, total = _number(second[at - 1]), _number(second[at + 1])
            if used is not None and total:
                values.update(memory_used=used * _MB, memory_total=total * _MB)
    return values


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # NA, [N/A], -
        return None
    return value if -1e6 < value < 1e9 else None


TOOLS: dict[str, tuple[tuple[str, ...], Callable[[str], Devices]]] = {
    "Ascend": (("npu-smi", "info"), read_npu_smi),
    "GPU": (
        (
            "nvidia-smi",
            "--query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw",
            "--format=csv,noheader,nounits",
        ),
        read_nvidia_smi,
    ),
}
"""The tool of each device target, and how its output is read."""


class DeviceMetrics:
    """Asks for the devices of a target from time to time; costs nothing where its tool is not there.

    `devices` are numbers as a process with these variables sees them; the tool knows those of the host.
    """

    def __init__(self, target: str | None, devices: set[int], environment: Mapping[str, str]) -> None:
        self._numbers = by_file(devices, DEVICE_FILES[target], environment) if target in DEVICE_FILES else {}
        self._argv, self._read = TOOLS.get(target or "", ((), read_nvidia_smi))
        self._path = _find(self._argv[0]) if self._argv and devices else None
        self._pid: int | None = None
        self._pipe = -1
        self._output = b""
        self._asked = 0.0
        self._failures = 0

    def look(self, now: float) -> Devices:
        """Return what has been answered since the look before; ask again where it is time to."""
        if self._path is None:
            return {}
        devices: Devices = {}
        if self._pid is not None:
            devices = self._receive(now)
        elif now - self._asked >= EVERY:
            self._ask(self._path, now)
        return {self._numbers[file]: values for file, values in devices.items() if file in self._numbers and values}

    def close(self) -> None:
        self._path = None
        if self._pid is not None:
            self._give_up()

    def _ask(self, path: str, now: float) -> None:
        self._asked, self._output = now, b""
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, end, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            self._pid = os.posix_spawn(
                path,
                self._argv,
                without_limits(os.environ),
                file_actions=files,
                setpgroup=0,
                setsigdef=[signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
        except OSError:
            self._path = None
            os.close(self._pipe)
        finally:
            os.close(end)

    def _receive(self, now: float) -> Devices:
        """Take what has come; the end of the output is the end of the answer."""
        try:
            while data := os.read(self._pipe, 1 << 16):
                self._output += data
                if len(self._output) > MOST_OUTPUT:
                    return self._give_up()
        except BlockingIOError:
            return self._give_up() if now - self._asked > LONGEST else {}
        self._end()
        devices = self._read(self._output.decode("utf-8", "replace"))
        if devices:
            self._failures = 0
        else:
            self._count_failure()
        return devices

    def _give_up(self) -> Devices:
        """End a tool that hangs, and what it has started; its agent reaps it as it does all its children."""
        try:
            if self._pid is not None:
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # it is a child of ours still
                os.killpg(self._pid, signal.SIGKILL)
        except OSError:
            pass
        self._end()
        self._count_failure()
        return {}

    def _count_failure(self) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._path = None

    def _end(self) -> None:
        os.close(self._pipe)
        self._pid = None


def _find(name: str) -> str | None:
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
