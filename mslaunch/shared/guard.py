"""The guard: the parent of the agent. Should the agent be killed or stopped, it ends every process of the run.

Both are subreapers: what loses its parent comes to the agent, and when that is gone, to the guard. So the guard also
finds processes that have left their session and their environment behind.
"""

from __future__ import annotations

import os
import select
import signal
import time

from mslaunch.shared import processes, work_folder

PATIENCE = 60.0  # a process that hangs in the kernel may never end
TURN = 1.0
MOST_STOPPED = 3  # how many turns an agent may stand still whose launcher has gone
MOST_TURNS = 90  # how many turns any agent may take to end then; it takes 22 s at most


class AgentGuard:
    """The agent's end of the pipe to its guard; the pipe's end is the agent's end."""

    def __init__(self, pipe: int, pid: int) -> None:
        self._pipe = pipe
        self._pid = pid

    def protect(self, run_dir: str, ranks: list[int]) -> None:
        """Name the run by its folder: ids may be the same in two places; and the ranks that are this host's."""
        self._send(os.fsencode(f"{run_dir}\0{','.join(map(str, ranks))}\0"))

    def dismiss(self) -> None:
        """Tell the guard that nothing is left. One that somebody has stopped is continued: others wait for its end."""
        self._send(b"\0\0")
        os.close(self._pipe)
        if os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGCONT)

    def _send(self, record: bytes) -> None:
        try:
            os.write(self._pipe, record)
        except OSError:  # somebody has killed the guard; the agent itself is still here
            pass


def start(stdin: int | None = None) -> AgentGuard:
    """Fork: the child returns and becomes the agent, this process guards it and never returns.

    `stdin` is the launcher's standard input, which is for the agent alone.
    """
    read, write = os.pipe()
    processes.become_subreaper()
    pid = os.getpid()
    agent = os.fork()
    if agent:
        os.close(write)
        if stdin is not None:
            os.close(stdin)
        _guard(read, agent)
    os.setsid()  # a signal to one's process group must not reach the other
    os.close(read)
    return AgentGuard(write, pid)


def stay_behind() -> None:
    """Fork: the child returns; this process ends when all that comes of it has ended, and does nothing else.

    The shell or srun that started this process takes its end for the agent's, so it must not be the guard, which
    somebody may kill while the agent goes on.
    """
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)  # the other end stays open in the guard and the agent, and in nothing that they start
        return
    os.close(write)
    _ignore_signals()
    while os.read(read, 1):
        pass
    os._exit(0)


def _guard(pipe: int, agent: int) -> None:
    try:
        _ignore_signals()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):  # an open end of the launcher's pipes would keep it waiting
            os.dup2(nothing, stream)
        run_dir, ranks = _wait_for_end(pipe, agent)
        if run_dir:
            end_run(run_dir)
            _end_descendants()
            for rank in ranks:
                work_folder.clear(run_dir, rank)
    finally:
        os._exit(0)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _wait_for_end(pipe: int, agent: int) -> tuple[str, list[int]]:
    """Wait until the agent is gone; return the folder of its run and its ranks, no folder where nothing is left."""
    received = b""
    turns = stopped = 0
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(0, 0)  # tells when the launcher's stream has ended, and nothing else
    while True:
        for end, _ in poll.poll(TURN * 1000 if turns else None):
            if end == 0:
                poll.unregister(0)
                turns = 1
                continue
            data = os.read(pipe, 4096)
            if not data:
                run_dir, ranks = ["", "", *os.fsdecode(received).split("\0")[:-1]][-2:]
                return run_dir, [int(rank) for rank in ranks.split(",") if rank]
            received += data
        if turns:
            turns += 1
            stopped = stopped + 1 if processes.is_stopped(agent) else 0
            if stopped > MOST_STOPPED or turns > MOST_TURNS:
                os.kill(agent, signal.SIGKILL)


def end_run(run_dir: str) -> None:
    """Kill every process of a run, until none is left that can be killed."""
    until = time.monotonic() + PATIENCE
    while (pids := processes_with(f"MSLAUNCH_RUN_DIR={run_dir}")) and time.monotonic() < until:
        processes.signal_all(pids, signal.SIGKILL)
        time.sleep(0.02)


def _end_descendants() -> None:
    until = time.monotonic() + PATIENCE
    while processes.has_children() and time.monotonic() < until:
        processes.signal_all(processes.descendants(os.getpid()), signal.SIGKILL)
        while processes.has_children() and os.waitpid(-1, os.WNOHANG)[0]:
            pass
        time.sleep(0.02)


def processes_with(variable: str) -> list[int]:
    """Return this user's processes, not zombies, that were started with this variable, written NAME=VALUE."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
    return [pid for pid in pids if processes.belongs(pid, variable) and processes.is_own(pid)]
