"""The types of everything that launcher, agents and ranks send each other.

Agents and ranks import this module for type checking only: loading `typing` would cost each of them 6 ms.
docs/records.md says what recorded events and their fields mean, and a test compares it with these types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from mslaunch.shared.metric_values import check_values

Message = dict[str, Any]  # a decoded record before its type is known: what the wire carries
Role = Literal["scheduler", "worker", "script"]  # what a planned process is
Start = Literal["now", "on-import", "by-script"]
"""When a planned process starts: at once, when a rank imports MindSpore, or when the script of the method starts it."""

AGENT_EVENTS: dict[str, type] = {}  # every event that an agent sends, by its name
NOT_RECORDED: set[str] = set()
"""Events of agents that events.jsonl does not hold: too many, too large, or from before the run."""

Kind = TypeVar("Kind", bound=type)


def agent_event(*names: str, is_recorded: bool = True) -> Callable[[Kind], Kind]:
    """Enter a class into AGENT_EVENTS by the names that it is sent with."""

    def enter(kind: Kind) -> Kind:
        AGENT_EVENTS.update(dict.fromkeys(names, kind))
        if not is_recorded:
            NOT_RECORDED.update(names)
        return kind

    return enter


class Event(TypedDict):
    """What every event has: its name, the host it comes from and when it happened there."""

    ev: str
    host: str
    time: float


@agent_event("hello")
class HelloEvent(Event):
    pid: int


class NumaNode(TypedDict):
    node: int
    cores: list[int]


class NumaDevice(TypedDict):
    device: int
    node: int


class NumaAnswer(TypedDict):
    """What an agent has found out about the NUMA nodes of its host; devices by target."""

    nodes: list[NumaNode]
    devices: dict[str, list[NumaDevice]]


class DeviceLimit(TypedDict):
    by: str  # the variable that limits the devices that ranks see
    of: int  # how many are there
    files: list[int | None]  # numbers of the device files that are seen, by device; null where that is not known


class HostFactsAnswer(TypedDict):
    python: str
    version: str
    mindspore: str | None
    cores: list[int]
    devices: dict[str, list[int]]
    limits: dict[str, DeviceLimit]
    busy: dict[str, str]
    held: dict[str, str]
    gpus: list[int]
    clock: float  # when the host began to look
    took: float  # how many seconds that took
    shared: bool
    script: str | None
    numa: NumaAnswer | None
    free: int
    unwritable: str | None


@agent_event("facts", is_recorded=False)
class FactsEvent(Event):
    facts: HostFactsAnswer


@agent_event("listening", is_recorded=False)
class Listening(Event):
    """A host holds a port open, or could not."""

    port: int | None
    why: str


@agent_event("reached", is_recorded=False)
class Reached(Event):
    """Whether a host could connect to the scheduler's port; `why` is empty where it could."""

    why: str | None


@agent_event("files-failed", "sync-failed")
class HostFailure(Event):
    why: str


@agent_event("started")
class Started(Event):
    role: Role
    rank: int | None
    pid: int


@agent_event("start-failed")
class StartFailed(Event):
    role: str
    rank: int | None
    why: str


@agent_event("devices-held")
class DevicesHeld(Event):
    held: dict[str, str]


@agent_event("setup-failed")
class SetupFailed(Event):
    code: int | None
    log: str


@agent_event("import", "imported", "joining", "joined", "done")
class RankNote(Event):
    rank: int
    message: str | None


@agent_event("error")
class RankError(Event):
    rank: int
    message: str


class _ExitedAlways(Event):
    role: Role
    rank: int | None
    pid: int | None
    code: int | None
    signal: int | None


@agent_event("exited")
class Exited(_ExitedAlways, total=False):
    crashed: int | None
    out_of_memory: bool
    asked: bool
    child: str
    child_signal: int
    kernel: str


@agent_event("nested-launcher")
class NestedLauncherEvent(Event):
    rank: int
    command: str


@agent_event("pulse", is_recorded=False)
class Pulse(Event):
    """The answer to a ping: for how many seconds no rank of the host has written anything."""

    quiet: float


@agent_event("activity", is_recorded=False)
class Activity(Event):
    """For how many seconds each rank of the host has printed nothing (silent), and has not computed either (idle)."""

    silent: dict[str, float]
    idle: dict[str, float]


class MetricRow(TypedDict):
    """What was measured at one time: of a rank, of a device of the host, or of the host where both are null."""

    time: float
    rank: int | None
    device: int | None
    values: Annotated[dict[str, Any], check_values]


@agent_event("metrics", is_recorded=False)
class MetricsEvent(Event):
    rows: list[MetricRow]


class _LinesAlways(Event):
    rank: int
    lines: list[str]
    bytes: int


@agent_event("lines", is_recorded=False)
class Lines(_LinesAlways, total=False):
    """Lines of a rank's log, and how many bytes of it they are; `raw`: the last one has no newline yet."""

    raw: bool


@agent_event("bar", is_recorded=False)
class Bar(Event):
    """How the progress bar of a shown rank stands: the end of a line that has no newline yet and was written over."""

    rank: int
    text: str


@agent_event("file", is_recorded=False)
class FilePiece(Event):
    """A piece of a collected file: as it is where it is plain text, else in base64."""

    path: str
    offset: int
    is_text: bool
    data: str


@agent_event("collected", is_recorded=False)
class Collected(Event):
    """All files of a host have been sent; so many of the job itself stay there, and these are the first of them."""

    kept: list[str]
    count: int
    turn: int


class OutputRow(TypedDict):
    """A file that a rank has written, or a folder of files; one that all ranks share has no rank."""

    rank: int | None
    path: str
    files: int
    bytes: int


@agent_event("outputs", is_recorded=False)
class Outputs(Event):
    outputs: list[OutputRow]


@agent_event("stacks")
class Stacks(Event):
    stacks: dict[str, str]


@agent_event("abandoned")
class Abandoned(Event):
    why: str
    signal: int | None


@agent_event("stuck")
class Stuck(Event):
    processes: list[str]


@agent_event("agent-note")
class AgentNote(Event):
    text: str


@agent_event("idle")
class Idle(Event):
    """Nothing of the run is left on a host."""


class OrderMessage(TypedDict):
    """What every order has: the host it is for, or * for all, and what to do; the agent's handlers show small ones."""

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


class FilesOrder(OrderMessage):
    """Take a piece of the run's files, in base64; the last piece unpacks them."""

    run_dir: str
    data: str
    last: bool


class PlannedProcess(TypedDict):
    role: Role
    rank: int | None
    host: str
    device_id: int | None
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    log: str
    start: Start


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
    """How an agent measures."""

    every: float  # seconds between two looks at logs
    most: int  # lines of a log that are read per look
    resources: float  # seconds between two looks at processes, host and devices
    devices: str | None  # the target of the devices
    patterns: list[LinePatternOrder]


class CopyOrder(TypedDict):
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


class CollectOrder(OrderMessage):
    """Send the logs of the run."""

    run_dir: str
    tidy: bool  # whether to remove afterwards what was brought
    turn: int
    share: float  # of the agent's time that reading may take: all of it once the job has ended
