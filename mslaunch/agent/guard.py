"""The guard: should the agent itself be killed, it ends every process of the run, wherever that has got to."""

from __future__ import annotations

import os
import signal
import time

from mslaunch.agent.processes import belongs, is_own

PATIENCE = 60.0  # a process that hangs in the kernel may never end


class Guard:
    """A forked child that holds the read end of a pipe; the pipe's end is the agent's end."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            _watch(read)
        os.close(read)

    def protect(self, run_dir: str) -> None:
        """Name the run by its folder: ids may be the same in two places."""
        self._say(os.fsencode(f"{run_dir}\0"))

    def dismiss(self) -> None:
        """Tell the guard that all is well, and see it off."""
        self._say(b"\0")
        os.close(self._write)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass

    def _say(self, words: bytes) -> None:
        try:
            os.write(self._write, words)
        except BrokenPipeError:  # somebody has killed the guard; the agent itself is still here
            pass


def _watch(pipe: int) -> None:
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # an open end of the launcher's pipes would keep it waiting
            os.dup2(nothing, stream)
        said = b""
        while data := os.read(pipe, 4096):
            said += data
        last = os.fsdecode(said).split("\0")[-2:-1]
        if last and last[0]:
            end_run(last[0])
    finally:
        os._exit(0)


def end_run(run_dir: str) -> None:
    """Kill every process of a run, until none is left that can be killed."""
    until = time.monotonic() + PATIENCE
    while (pids := processes_with(f"MSLAUNCH_RUN_DIR={run_dir}")) and time.monotonic() < until:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)


def processes_with(variable: str) -> list[int]:
    """Return this user's processes, not zombies, that were started with this variable, written NAME=VALUE."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
    return [pid for pid in pids if belongs(pid, variable) and is_own(pid)]
