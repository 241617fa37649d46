"""What the launcher itself reports about a run: what observers see, and what events.jsonl holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mslaunch.shared import messages


class LauncherNotice:
    """Something that the launcher noticed or did; agents report the rest."""

    __slots__: tuple[str, ...] = ()
    ev: ClassVar[str]

    def record(self) -> dict[str, Any]:
        """Return the notice as events.jsonl holds it."""
        return {"ev": self.ev, **{name: getattr(self, name) for name in self.__slots__}}


Notice = LauncherNotice | messages.Message
"""What an observer is shown: a notice of the launcher, or an event of an agent."""


@dataclass(frozen=True, slots=True)
class Tick(LauncherNotice):
    """A moment has passed."""

    ev = "tick"
    time: float


@dataclass(frozen=True, slots=True)
class RestartPause(LauncherNotice):
    """The next attempt starts in so many seconds."""

    ev = "waiting"
    seconds: float


@dataclass(frozen=True, slots=True)
class Closed(LauncherNotice):
    """The stream of a host has ended."""

    ev = "closed"
    host: str
    time: float


@dataclass(frozen=True, slots=True)
class SchemaLine(LauncherNotice):
    """The first line of events.jsonl."""

    ev = "schema"
    schema_version: str


@dataclass(frozen=True, slots=True)
class SignalNotice(LauncherNotice):
    """The launcher got a signal."""

    ev = "signal"
    signal: int
    time: float


@dataclass(frozen=True, slots=True)
class Note(LauncherNotice):
    """What the launcher tells people about the run."""

    ev = "note"
    text: str
    time: float


@dataclass(frozen=True, slots=True)
class Restart(LauncherNotice):
    """The job is about to be started again, as this attempt (the first one is 0)."""

    ev = "restart"
    attempt: int
    time: float


@dataclass(frozen=True, slots=True)
class Stopping(LauncherNotice):
    """Everything is being stopped."""

    ev = "stopping"
    time: float


@dataclass(frozen=True, slots=True)
class StacksTaken(LauncherNotice):
    """Stacks that were asked for are there, grouped."""

    ev = "stacks-taken"
    groups: list[str]


@dataclass(frozen=True, slots=True)
class ConsoleLost(LauncherNotice):
    """The console failed; the job went on without it."""

    ev = "console-lost"
    traceback: str


@dataclass(frozen=True, slots=True)
class UnknownEvent(LauncherNotice):
    """An agent sent something that this version does not know; it was ignored."""

    ev = "unknown"
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class RejectedEvent(LauncherNotice):
    """A host sent what it must not send: a wrong record, or one of another host. It was cut off."""

    ev = "rejected"
    host: str
    why: str
    time: float


_KINDS = (SchemaLine, SignalNotice, Note, Restart, Stopping, StacksTaken, ConsoleLost, UnknownEvent, RejectedEvent)
RECORDED: dict[str, type[LauncherNotice]] = {kind.ev: kind for kind in _KINDS}
"""The events of the launcher in events.jsonl, by name."""


def read_notice(event: messages.Message) -> Notice:
    """Return a line of events.jsonl as an observer is shown it."""
    kind = RECORDED.get(event["ev"])
    if kind is None:
        return event
    return kind(**{name: event[name] for name in kind.__slots__})
