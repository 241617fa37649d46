"""One planned process, and how it and what it started ended."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mslaunch.shared import messages

MOST_DEAD = 100
RECENT = 300.0  # a process that was killed so many seconds before a rank failed may be why it did


class Child:
    """One planned process. A rank that a script starts is known by what its supervisor says of it."""

    def __init__(self, planned: messages.PlannedProcess) -> None:
        self.planned = planned
        self.role = planned["role"]
        self.rank = planned["rank"]
        self.by_script = planned["start"] == "by-script"
        self.pid: int | None = None
        self.running = False
        self.joining = False
        self.raised = False
        self.missed: float | None = None
        self.dead: dict[int, DeadProcess] = {}
        """Processes that it has started and that a signal has killed."""

    def add_dead(self, dead: DeadProcess) -> None:
        """Remember a process that this one has started; SIGTERM is how a rank ends its own."""
        if dead.signal not in (None, signal.SIGTERM) and len(self.dead) < MOST_DEAD:
            self.dead[dead.pid] = dead

    def last_dead(self, now: float) -> DeadProcess | None:
        """Return the process that was killed last, if that was a short time ago."""
        recent = [dead for dead in self.dead.values() if now - dead.seen < RECENT]
        return recent[-1] if recent else None


class DeadProcess:
    """A process that has ended: its number, its name, the leader of its session and the signal that killed it."""

    def __init__(self, pid: int, name: str = "", session: int = 0, killed_by: int | None = None) -> None:
        self.pid = pid
        self.name = name
        self.session = session
        self.signal = killed_by
        self.seen = time.monotonic()

    def words(self) -> str:
        return f"{self.pid} ({self.name})" if self.name else str(self.pid)


def reap_all() -> Iterator[tuple[DeadProcess, int]]:
    """Reap every child that has ended; yield it with its wait status."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            name, session = _name_and_session(found.si_pid)  # before it is reaped: then nothing is known of it
            pid, status = os.waitpid(found.si_pid, 0)
        except ChildProcessError:
            return
        yield DeadProcess(pid, name, session, os.WTERMSIG(status) if os.WIFSIGNALED(status) else None), status


def _name_and_session(pid: int) -> tuple[str, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        return name, int(rest.split()[3])
    except (OSError, IndexError, ValueError):
        return "", 0
