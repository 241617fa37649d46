"""What the launcher itself writes into events.jsonl."""

from __future__ import annotations

from typing import Literal, TypedDict


class SchemaLine(TypedDict):
    """The first line of events.jsonl."""

    ev: Literal["schema"]
    schema_version: str


class SignalEvent(TypedDict):
    """The launcher got a signal."""

    ev: Literal["signal"]
    signal: int
    time: float


class StacksTaken(TypedDict):
    """Stacks that were asked for are there, grouped."""

    ev: Literal["stacks-taken"]
    groups: list[str]


class ConsoleLost(TypedDict):
    """The console failed; the job went on without it."""

    ev: Literal["console-lost"]
    traceback: str


class NoteEvent(TypedDict):
    """What the launcher tells people about the run."""

    ev: Literal["note"]
    text: str
    time: float


class UnknownEvent(TypedDict):
    """An agent sent something that this version does not know; it was ignored."""

    ev: Literal["unknown"]
    host: str
    name: str


class RejectedEvent(TypedDict):
    """A host sent what it must not send: a wrong record, or one of another host. It was cut off."""

    ev: Literal["rejected"]
    host: str
    why: str
    time: float


class StoppingEvent(TypedDict):
    """Everything is being stopped."""

    ev: Literal["stopping"]
    time: float


class RestartEvent(TypedDict):
    """The job is about to be started again, as this attempt (the first one is 0)."""

    ev: Literal["restart"]
    attempt: int
    time: float


LAUNCHER_EVENTS: dict[str, type] = {
    "schema": SchemaLine,
    "signal": SignalEvent,
    "stacks-taken": StacksTaken,
    "console-lost": ConsoleLost,
    "note": NoteEvent,
    "unknown": UnknownEvent,
    "rejected": RejectedEvent,
    "restart": RestartEvent,
    "stopping": StoppingEvent,
}
"""What the launcher itself writes into events.jsonl, by name."""
