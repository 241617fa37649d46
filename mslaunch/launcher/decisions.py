"""What an attempt decides: that something has failed, and what the agents are to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from mslaunch.shared import messages

LOST = 125
TIME_IS_UP = 124


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

    def message(self) -> messages.StopOrder:
        return {"to": "*", "do": self.do, "grace": self.grace}
