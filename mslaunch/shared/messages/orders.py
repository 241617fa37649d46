"""What the launcher sends: orders, each with its type."""

from __future__ import annotations

from typing import Literal, TypedDict


class OrderMessage(TypedDict):
    """What every order has: the host it is for, or * for all, and what to do."""

    to: str
    do: str


class ProbeOrder(OrderMessage):
    """Tell what the host has."""

    run_dir: str
    script: str
    nonce: str
    nonce_text: str
    device_variables: tuple[str, ...]
    env: dict[str, str]
    numa: bool


class ListenOrder(OrderMessage):
    """Hold a port open: this one, or the first of the choices that is free."""

    port: int | None
    choices: list[int]


class ReachOrder(OrderMessage):
    """Connect to a port."""

    address: str
    port: int
    seconds: float


class FilesOrder(OrderMessage):
    """Take a piece of the run's files, in base64; the last piece unpacks them."""

    run_dir: str
    data: str
    last: bool


class PlannedProcess(TypedDict):
    """A process of the plan, as it is sent to its host."""

    role: str
    rank: int | None
    host: str
    device_id: int | None
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    log: str
    start: str


class LinePatternOrder(TypedDict):
    """A pattern that lines of logs are tried with: group i of the regex is the metric fields[i - 1], "" is none.

    Without fields the match is an object whose numbers are metrics. The first pattern that `reads` a line is taken;
    patterns that `complete` it then give what that one has not, unless it has read an object; patterns of the job
    `add` to any line.
    """

    id: str
    literals: list[str]
    regex: str
    fields: list[str]
    built_in: bool
    role: Literal["reads", "completes", "adds"]


class MetricsOrder(TypedDict):
    """How an agent measures: seconds between two looks, lines of a log that are read per look, what lines look like.

    `resources` are the seconds between two looks at processes and host, `devices` is the target that they are of.
    """

    every: float
    most: int
    resources: float
    devices: str | None
    patterns: list[LinePatternOrder]


class CopyOrder(TypedDict):
    """One copy between a bucket and a host."""

    source: str
    target: str


class SyncOrder(TypedDict):
    """What a host copies before its ranks start and after they have ended, and the Python that does it."""

    python: str
    before: list[CopyOrder]
    after: list[CopyOrder]
    endpoint: str | None


class RunOrder(OrderMessage):
    """Start a host's part of the plan."""

    run_dir: str
    attempt: int
    env: dict[str, str]
    unset: tuple[str, ...]
    secrets: dict[str, str]
    setup: str | None
    sync: SyncOrder | None
    tail: list[int]
    stdin: int | None
    launcher_lost_after: float | None
    """None where the stream ends when the launcher is gone: its silence means nothing then."""
    grace: float
    answers: bool
    device_files: str | None
    reports_launchers: bool
    workdir: str
    metrics: MetricsOrder | None
    processes: list[PlannedProcess]


class StopOrder(OrderMessage):
    """Ask all processes to end, and end them after so many seconds."""

    grace: float


class ShownOrder(OrderMessage):
    """So many bytes of lines are on the screen: more may be sent."""

    bytes: int


class WrittenOrder(OrderMessage):
    """A piece of a file, of so many bytes, is written: more may be sent."""

    bytes: int


class CollectOrder(OrderMessage):
    """Send the logs of the run; then remove what was brought, where that is asked.

    `share` is the share of the agent's time that reading them may take: all of it once the job has ended.
    """

    run_dir: str
    tidy: bool
    turn: int
    share: float


ORDERS: dict[str, type] = {
    "probe": ProbeOrder,
    "listen": ListenOrder,
    "reach": ReachOrder,
    "close-port": OrderMessage,
    "files": FilesOrder,
    "run": RunOrder,
    "stop": StopOrder,
    "finish": OrderMessage,
    "scheduler": OrderMessage,
    "joined": OrderMessage,
    "stacks": OrderMessage,
    "warn": OrderMessage,
    "ping": OrderMessage,
    "activity": OrderMessage,
    "pause": OrderMessage,
    "resume": OrderMessage,
    "shown": ShownOrder,
    "written": WrittenOrder,
    "collect": CollectOrder,
    "bye": OrderMessage,
}
"""Every order that an agent obeys, by its name."""
