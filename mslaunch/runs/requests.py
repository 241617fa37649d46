"""Asking a run's launcher for something: by a signal, or by a file in the run's folder where it must not be signalled.

A launcher inside another program shares that program's pid. A signal would reach the program, whose author may handle
it, ignore it or end by it. So such a launcher looks for files instead. A file needs no reader when it is made: it stays
until the launcher has seen it, it works on every file system, and two askers of the same thing make one request.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from mslaunch.errors import NotReadyError
from mslaunch.runs import identity
from mslaunch.runs.identity import Launcher
from mslaunch.runs.paths import RunFolder, SweepFolder
from mslaunch.shared.processes import is_own
from mslaunch.signals import STACKS

SIGNALS = {"stop": signal.SIGTERM, "stacks": STACKS}
"""What can be asked for, and the signal that asks a launcher which is a process of its own."""


def ask(folder: RunFolder | SweepFolder, launcher: Launcher, kind: str) -> None:
    """Ask the launcher of a run or a sweep, on this host, to stop it or to take stacks."""
    if not launcher.in_process:
        if not identity.is_alive(launcher):
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
    """Return what has been asked for by files, as signals; each request counts once."""
    return [number for kind, number in SIGNALS.items() if _remove(folder, kind)]


def withdraw(folder: RunFolder | SweepFolder) -> None:
    """Remove requests that nobody will see any more."""
    for kind in SIGNALS:
        _remove(folder, kind)


def _remove(folder: RunFolder | SweepFolder, kind: str) -> bool:
    try:
        folder.request(kind).unlink()
    except OSError:  # there is none, or another reader was first
        return False
    return True
