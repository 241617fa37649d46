"""What an attempt decides: that something has failed, what the agents do about it, and how it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from mslaunch.shared import messages
from mslaunch.shared.processes import CRASHES


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong by itself, and when."""

    time: float
    rank: int | None
    host: str
    exit_code: int
    signal: int | None
    cause: str
    summary: str
    log: str | None = None
    out_of_memory: bool = False
    child: str | None = None
    """A process of the rank that was killed before it, and by which signal."""
    child_signal: int | None = None
    kernel: str | None = None
    """What the kernel shows of kills for lack of memory, where SIGKILL has ended the rank or its process."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the launcher should send to every agent."""

    do: str
    grace: float = 0.0


@dataclass(slots=True)
class Ending:
    """How an attempt ends: what has failed, which signal asks for the end, whether ranks are being stopped."""

    grace: float
    agents_are_stopped: bool
    """A batch system signals agents and launcher alike when a job is to end, and agents may notice first."""
    failures: list[Failure] = field(default_factory=list)
    interrupt: int | None = None
    only_agents_noticed: bool = False
    stopping: bool = False
    finished: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether the ranks are being stopped, or have all ended well: agents then end by themselves."""
        return self.stopping or self.finished

    def fail(self, failure: Failure) -> list[Order]:
        """Something went wrong; the first time, everything is stopped."""
        self.failures.append(failure)
        if self.is_decided:
            return []
        self.stopping = True
        return [Order("stop", self.grace)]

    def finish(self, failure: Failure | None) -> list[Order]:
        """All ranks have ended well; what they did may still be a failure."""
        self.finished = True
        if failure is not None:
            self.failures.append(failure)
        return [Order("finish")]

    def interrupted(self, number: int) -> list[Order]:
        """A signal asks for the end: the first waits for the ranks, the second does not.

        A job that is ending because it failed stays failed, and one whose ranks have all ended well has succeeded:
        there a signal only hurries it on.
        """
        again = (self.interrupt is not None and not self.only_agents_noticed) or bool(self.failures)
        self.only_agents_noticed = False
        if not self.failures and not self.finished:
            self.interrupt = self.interrupt or number
        self.stopping = True
        return [Order("stop", 0.0 if again else self.grace)]

    def interrupted_with_agents(self, number: int) -> list[Order]:
        """An agent has noticed a signal that the launcher gets as well."""
        if self.is_decided:
            return []
        self.interrupt, self.stopping, self.only_agents_noticed = number, True, True
        return [Order("stop", self.grace)]

    def has_stopped(self, event: messages.Exited, number: int | None) -> bool:
        """Tell whether a rank ended because it was stopped; one that crashes meanwhile ended by itself."""
        asked = event.get("asked", True) or self.interrupt is not None
        return self.stopping and asked and number not in CRASHES

    def add_reason(self, event: messages.Exited) -> None:
        """Add to a rank's failures what its agent found out when it had ended."""
        names = ("out_of_memory", "child", "child_signal", "kernel")
        why = {name: event.get(name) for name in names if event.get(name)}
        for at, failure in enumerate(self.failures):
            if why and failure.rank == event["rank"]:
                self.failures[at] = replace(failure, **cast(dict[str, Any], why))
