"""What the launcher itself writes into events.jsonl."""

from __future__ import annotations

from typing import Literal, TypedDict, TypeVar, get_args, get_type_hints

LAUNCHER_EVENTS: dict[str, type] = {}
"""Every event of the launcher, by its name."""

Kind = TypeVar("Kind", bound=type)


def launcher_event(kind: Kind) -> Kind:
    """Enter a class into LAUNCHER_EVENTS by the name that its field `ev` allows."""
    LAUNCHER_EVENTS.update(dict.fromkeys(get_args(get_type_hints(kind)["ev"]), kind))
    return kind


@launcher_event
class SchemaLine(TypedDict):
    """The first line of events.jsonl."""

    ev: Literal["schema"]
    schema_version: str


@launcher_event
class SignalEvent(TypedDict):
    """The launcher got a signal."""

    ev: Literal["signal"]
    signal: int
    time: float


@launcher_event
class StacksTaken(TypedDict):
    """Stacks that were asked for are there, grouped."""

    ev: Literal["stacks-taken"]
    groups: list[str]


@launcher_event
class ConsoleLost(TypedDict):
    """The console failed; the job went on without it."""

    ev: Literal["console-lost"]
    traceback: str


@launcher_event
class NoteEvent(TypedDict):
    """What the launcher tells people about the run."""

    ev: Literal["note"]
    text: str
    time: float


@launcher_event
class UnknownEvent(TypedDict):
    """An agent sent something that this version does not know; it was ignored."""

    ev: Literal["unknown"]
    host: str
    name: str


@launcher_event
class RejectedEvent(TypedDict):
    """A host sent what it must not send: a wrong record, or one of another host. It was cut off."""

    ev: Literal["rejected"]
    host: str
    why: str
    time: float


@launcher_event
class StoppingEvent(TypedDict):
    """Everything is being stopped."""

    ev: Literal["stopping"]
    time: float


@launcher_event
class RestartEvent(TypedDict):
    """The job is about to be started again, as this attempt (the first one is 0)."""

    ev: Literal["restart"]
    attempt: int
    time: float
