"""Launchers as processes: telling them apart, and asking them to stop or to take stacks.

A signal to a launcher inside another program would reach that program, whose author may handle it, ignore it or end by
it. Such a launcher looks for files in the run's folder instead, which stay until it has seen them.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mslaunch.errors import NotReadyError
from mslaunch.run.paths import RunFolder, SweepFolder
from mslaunch.shared.processes import is_own, read_stat
from mslaunch.signals import STACKS

LARGEST_PID = 1 << 22


def _is_pid(number: int) -> str | None:
    """Zero and negative numbers name groups of processes, or all of them."""
    return None if 0 < number <= LARGEST_PID else "the number of a process"


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
    pid_namespace: str = ""  # the namespace of the pid; empty in records of earlier versions
    began: float | None = None  # when it described itself, in seconds since boot: nobody sets that clock


def this_process(in_process: bool = False) -> Launcher:
    """Describe this process as a launcher, or as the program that one is a thread of."""
    stat = read_stat(os.getpid())
    place = (socket.gethostname(), boot_id(), in_process, pid_namespace())
    began = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)
    return Launcher(os.getpid(), stat.began if stat else None, *place, began)


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
    stat = read_stat(who.pid)
    if stat is None or stat.state in (b"Z", b"X"):
        return False
    return who.boot_id == boot_id() and stat.began == who.start_time


SIGNALS = {"stop": signal.SIGTERM, "stacks": STACKS}
"""What can be asked for, and the signal that asks a launcher which is a process of its own."""


def ask(folder: RunFolder | SweepFolder, launcher: Launcher, kind: str) -> None:
    """Ask the launcher of a run or a sweep, on this host, to stop it or to take stacks."""
    if not launcher.in_process:
        if not is_alive(launcher):
            return
        if not is_own(launcher.pid):
            raise NotReadyError(
                f"{folder.path}: its launcher, pid {launcher.pid}, runs as another user. Stop it as that user."
            )
        with suppress(ProcessLookupError):
            os.kill(launcher.pid, SIGNALS[kind])
        return
    path = folder.request(kind)
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise NotReadyError(
            f"{path}: cannot be written ({error.strerror}). The run belongs to the program with pid {launcher.pid}; "
            f"stop it there."
        ) from None


def receive(folder: RunFolder | SweepFolder) -> list[int]:
    """Return what has been asked for by files, as signals, and remove the files: each request counts once."""
    numbers: list[int] = []
    for kind, number in SIGNALS.items():
        with suppress(OSError):  # there is none, or another reader was first
            folder.request(kind).unlink()
            numbers.append(number)
    return numbers
