"""What ranks write: into their folders, and into the pipe to their agent."""

from __future__ import annotations

from typing import TypedDict


class ErrorFile(TypedDict):
    """A rank's error.json: the exception that it ended with, or that a thread of it did."""

    rank: int | None
    host: str | None
    pid: int
    time: float
    type: str
    message: str
    traceback: str
    thread: str | None


class ExitFile(TypedDict):
    """A rank's exit.json: how it ended, where a script started it."""

    code: int | None
    signal: int | None
    time: float


class RankMessage(TypedDict, total=False):
    """What a rank or its exit recorder tells the agent through a pipe."""

    what: str
    rank: int | None
    time: float
    child: int
    code: int | None
    signal: int | None
    crashed: int | None
    message: str
    rows: list[tuple[float, dict[str, float | str]]]
