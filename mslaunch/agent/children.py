"""The planned processes of a host, and how they and what they started ended."""

from __future__ import annotations

import os
import signal
import time

from mslaunch.shared import processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mslaunch.shared import messages

MOST_DEAD = 100
RECENT = 300.0  # a process that was killed so many seconds before a rank failed may be why it did


class Child:
    """One planned process. A rank that a script starts is known by the messages of its exit recorder."""

    def __init__(self, planned: messages.PlannedProcess) -> None:
        self.planned = planned
        self.role = planned["role"]
        self.rank = planned["rank"]
        self.log = planned["log"]
        self.by_script = planned["start"] == "by-script"
        self.pid: int | None = None
        self.running = False
        self.joining = False
        self.raised = False
        self.missed: float | None = None
        self.dead: dict[int, DeadProcess] = {}
        """Processes that it has started and that a signal has killed."""

    @property
    def has_vanished(self) -> bool:
        """Tell whether it is a rank that a script has started, and that has gone without a message."""
        return self.by_script and self.running and not os.path.exists(f"/proc/{self.pid}")

    def add_dead(self, dead: DeadProcess) -> None:
        """Remember a process that this one has started; SIGTERM is how a rank ends its own."""
        if dead.signal not in (None, signal.SIGTERM) and len(self.dead) < MOST_DEAD:
            self.dead[dead.pid] = dead

    def last_dead(self, now: float) -> DeadProcess | None:
        """Return the process that was killed last, if that was a short time ago."""
        recent = [dead for dead in self.dead.values() if now - dead.seen < RECENT]
        return recent[-1] if recent else None


class Children:
    """All planned processes of an attempt."""

    def __init__(self, planned: Iterable[messages.PlannedProcess] = ()) -> None:
        self._children = [Child(process) for process in planned]
        self.by_pid: dict[int, Child] = {}
        """Those that the agent itself has started and that have not been reaped."""
        self.speakers = {child.rank: child for child in self._children if child.role in ("worker", "scheduler")}
        """Who sends messages: ranks by their number, the scheduler by None."""

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    @property
    def ranks(self) -> dict[int, Child]:
        return {child.rank: child for child in self._children if child.rank is not None}

    @property
    def running_ranks(self) -> dict[int, tuple[int, str]]:
        """Return pid and log of every rank that runs."""
        return {rank: (child.pid, child.log) for rank, child in self.ranks.items() if child.running and child.pid}

    @property
    def rank_pids(self) -> dict[int, int]:
        """Return the rank of every pid that was one, those that have ended included."""
        return {child.pid: rank for rank, child in self.ranks.items() if child.pid}


class DeadProcess:
    """A process that has ended: its number, its name, the leader of its session and the signal that killed it."""

    def __init__(self, pid: int, name: str = "", session: int = 0, killed_by: int | None = None) -> None:
        self.pid = pid
        self.name = name
        self.session = session
        self.signal = killed_by
        self.seen = time.monotonic()

    def describe(self) -> str:
        return f"{self.pid} ({self.name})" if self.name else str(self.pid)


def reap_all() -> Iterator[tuple[DeadProcess, int]]:
    """Reap exited children, adopted orphans included; yield each with its wait status."""
    while True:
        try:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is None:
                return
            stat = processes.read_stat(exited.si_pid)  # before it is reaped: then nothing is known of it
            pid, status = os.waitpid(exited.si_pid, 0)
        except ChildProcessError:
            return
        dead = DeadProcess(pid, killed_by=processes.outcome(status)["signal"])
        if stat is not None:
            dead.name, dead.session = stat.name, stat.session
        yield dead, status
