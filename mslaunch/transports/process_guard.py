"""Ends child processes of a launcher that has died: one that hangs in a login does not notice that its input ended.

A parent-death signal would need code between fork and exec, which costs the launcher 1.5 ms a process instead of 0.2 ms
and is not safe beside threads. Telling the guard each pid would come too late for a launcher that is killed just after
it has started one. So the children carry a mark in their environment, and the guard looks for it when the pipe to the
launcher ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from mslaunch.shared.guard import processes_with

_MARK = "MSLAUNCH_GUARDED_BY"
_MAIN = (
    "import sys; sys.path.append(sys.argv[1]); from mslaunch.transports.process_guard import main; main(sys.argv[2])"
)


def guarded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment for children that are to end when this process ends, however that happens."""
    return {**(os.environ if environment is None else environment), _MARK: _start(os.getpid())}


@cache
def _start(pid: int) -> str:
    """Start the guard of this process; return its mark. The pipe to it is never closed by us."""
    mark = f"{pid}-{os.urandom(4).hex()}"
    read, _write = os.pipe()
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _MAIN, str(Path(__file__).parents[2]), mark],
        stdin=read,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read)
    return mark


def main(mark: str) -> None:
    """Wait until the launcher is gone, then end whatever carries its mark."""
    sys.stdin.read()
    for pid in processes_with(f"{_MARK}={mark}"):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
