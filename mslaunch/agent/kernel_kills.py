"""Processes of a job that the kernel has killed for lack of memory."""

from __future__ import annotations

import os
import re
import time

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Collection

_GROUPS = "/sys/fs/cgroup"
_RECENT = 60.0  # a kill in the job's own cgroup that long before a rank failed may be why it did
_KILLED = re.compile(rb"^\d+,\d+,(\d+),[^;]*;.*Killed process (\d+) \((.*?)\)", re.MULTILINE)
UNKNOWN = "of unknown number"


class KernelKills:
    """What the kernel has killed for lack of memory since this was made.

    `counters` and `kernel_log` are files of the kernel: the counts of the own cgroups and of the machine, and its log.
    """

    def __init__(self, counters: tuple[list[str], str] | None = None, kernel_log: str = "/dev/kmsg") -> None:
        self._own, self._machine = counters or (_own_counters(), "/proc/vmstat")
        self._kernel_log = kernel_log
        self._began = time.monotonic()
        self._before = self._counts()

    def find(self, rank: int, dead: Collection[int]) -> str | None:
        """Name the process whose kill explains the end of a rank.

        It is the rank itself (then the name is empty), one of its dead children, or one of the same cgroup just now.
        None where the kernel has killed none of them.
        """
        own, machine = (now > before for now, before in zip(self._counts(), self._before))
        if not own and not machine:
            return None
        log = self._read_log()
        if log is None:
            return next((str(pid) for pid in dead), UNKNOWN if own else "")
        killed = {int(pid): (int(when) / 1e6, name.decode("utf-8", "replace")) for when, pid, name in log}
        if rank in killed:
            return ""
        recent = [pid for pid, (when, _) in killed.items() if own and time.monotonic() - when < _RECENT]
        for pid in (*dead, *reversed(recent)):
            if pid in killed:
                return f"{pid} ({killed[pid][1]})"
        return None

    def describe(self) -> str:
        """Say what the kernel shows of processes that it has killed for lack of memory, and what cannot be seen."""
        own, machine = self._counts()
        own_kills = _describe_kills(self._own, own - self._before[0])
        machine_kills = _describe_kills([self._machine], machine - self._before[1])
        text = f"out-of-memory kills since the job began: {own_kills} in its cgroup, {machine_kills} on the machine"
        if self._read_log() is None:
            text += "; the kernel's log cannot be read here"
        return text

    def _counts(self) -> tuple[int, int]:
        """Return how many processes were killed in this process's cgroups, and on the machine."""
        return sum(_read_count(path) or 0 for path in self._own), _read_count(self._machine) or 0

    def _read_log(self) -> list[tuple[bytes, bytes, bytes]] | None:
        """Return time, process and name of every kill since the beginning; None where the log may not be read."""
        text = _kernel_log(self._kernel_log)
        if text is None:
            return None
        return [kill for kill in _KILLED.findall(text) if int(kill[0]) / 1e6 > self._began - 1.0]


def _own_counters() -> list[str]:
    """Return the files that count kills in the cgroups of this process, of version 1 or 2."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    counters = []
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers == "":
            counters += [f"{_GROUPS}{path}/memory.events", f"{_GROUPS}/unified{path}/memory.events"]
        elif "memory" in controllers.split(","):
            counters.append(f"{_GROUPS}/memory{path}/memory.oom_control")
    return counters


def _read_count(path: str) -> int | None:
    """Return how many processes a file counts as killed; None where it does not count them."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _describe_kills(paths: list[str], kills: int) -> str:
    if all(_read_count(path) is None for path in paths):
        return "not counted"
    return str(kills) if kills else "none"


def _kernel_log(path: str) -> bytes | None:
    try:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records = []
    try:
        while True:
            try:
                record = os.read(end, 8192)
            except BrokenPipeError:  # this record was overwritten while we read; go on with the next
                continue
            except OSError:
                break
            if not record:  # a file, not the device
                break
            records.append(record)
    finally:
        os.close(end)
    return b"".join(records)
