"""Who a process is: its pid alone is not enough, since pids come round again."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

LARGEST_PID = 1 << 22


def _is_pid(number: int) -> str | None:
    """Zero and negative numbers name groups of processes, or all of them."""
    return None if 0 < number <= LARGEST_PID else "the number of a process"


def start_time(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Name the namespace in which this process has its pid."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The process that runs a job, told apart from any other that may get its pid."""

    pid: Annotated[int, _is_pid]
    start_time: int | None
    host: str
    boot_id: str
    in_process: bool = False
    """It is a thread of another program, so the pid is that program's: never signal it."""
    pid_namespace: str = ""
    """The namespace of the pid; empty in records of earlier versions."""
    began: float | None = None
    """When it described itself, in seconds since boot: nobody sets that clock."""

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def this_process(in_process: bool = False) -> Launcher:
    """Describe this process as a launcher, or as the program that one is a thread of."""
    pid = os.getpid()
    place = (socket.gethostname(), boot_id(), in_process, pid_namespace())
    return Launcher(pid, start_time(pid), *place, round(seconds_since_boot(), 3))


def seconds_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_here(who: Launcher) -> bool:
    """Tell whether a process is of this host, and would be seen from here: a container has pids of its own."""
    if who.host != socket.gethostname():
        return False
    here = pid_namespace()
    return who.boot_id != boot_id() or not who.pid_namespace or not here or who.pid_namespace == here


def place_of(who: Launcher) -> str:
    """Say where a process is that is not here."""
    return who.host if who.host != socket.gethostname() else f"{who.host} in another container"


def is_alive(who: Launcher) -> bool:
    """Tell whether the process that `this_process` described is still the one with its pid, on this boot."""
    started = start_time(who.pid)
    return who.boot_id == boot_id() and started is not None and started == who.start_time
