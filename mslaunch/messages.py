"""The types of everything that launcher and agents send each other, and of what events.jsonl holds.

Agents import this module for type checking only: loading `typing` would cost every start of an agent 6 ms.
docs/records.md says what each field means, and a test compares it with these types.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

SCHEMA_VERSION = "1.2"
"""Of run.json, plan.json and events.jsonl. The first number changes when a reader of the other version would be misled,
the second when fields or events are added."""


class Event(TypedDict):
    """What every event has: its name, the host it comes from and when it happened there."""

    ev: str
    host: str
    time: float


class Hello(Event):
    """An agent has started."""

    pid: int


class NumaNode(TypedDict):
    """A NUMA node of a host, and its cores."""

    node: int
    cores: list[int]


class NumaDevice(TypedDict):
    """A device, and the NUMA node that it is on."""

    device: int
    node: int


class NumaAnswer(TypedDict):
    """What an agent has found out about the NUMA nodes of its host; devices by target."""

    nodes: list[NumaNode]
    devices: dict[str, list[NumaDevice]]


class HostFactsAnswer(TypedDict):
    """What an agent has found out about its host."""

    python: str
    version: str
    mindspore: str | None
    cores: list[int]
    devices: dict[str, list[int]]
    busy: dict[str, str]
    held: dict[str, str]
    gpus: list[int]
    renumbered: bool
    clock: float
    shared: bool
    script: str | None
    numa: NumaAnswer | None
    free: int
    unwritable: str | None


class FactsEvent(Event):
    """The answer to a probe."""

    facts: HostFactsAnswer


class Listening(Event):
    """A host holds a port open, or could not."""

    port: int | None
    why: str


class Reached(Event):
    """Whether a host could connect to the scheduler's port; `why` is empty where it could."""

    why: str | None


class FilesFailed(Event):
    """A run's files could not be written on a host."""

    why: str


class Started(Event):
    """A process of the plan has started."""

    role: str
    rank: int | None
    pid: int


class StartFailed(Event):
    """A process of the plan could not be started, nor launch.setup (role setup) or the agent itself (role agent)."""

    role: str
    rank: int | None
    why: str


class DevicesHeld(Event):
    """Other runs hold devices that a host's ranks need, given by device with who holds it; nothing was started."""

    held: dict[str, str]


class SetupFailed(Event):
    """The commands of launch.setup failed."""

    code: int | None
    log: str


class RankNote(Event):
    """What a rank says of its way.

    It imports MindSpore (import), has loaded it (imported), enters init() (joining), is through (joined), or its script
    has ended well (done).
    """

    rank: int
    message: str | None


class RankError(Event):
    """A rank has raised an exception that nobody caught."""

    rank: int
    message: str


class _ExitedAlways(Event):
    role: str
    rank: int | None
    pid: int | None
    code: int | None
    signal: int | None


class Exited(_ExitedAlways, total=False):
    """A process of the plan has ended."""

    crashed: int | None
    out_of_memory: bool
    asked: bool
    child: str
    child_signal: int


class Pulse(Event):
    """The answer to a ping: for how many seconds no rank of the host has written anything."""

    quiet: float


class Activity(Event):
    """For how many seconds each rank of the host has printed nothing (silent), and has not computed either (idle)."""

    silent: dict[str, float]
    idle: dict[str, float]


class _LinesAlways(Event):
    rank: int
    lines: list[str]
    bytes: int


class Lines(_LinesAlways, total=False):
    """Lines of a rank's log, and how many bytes of it they are; `raw`: the last one has no newline yet."""

    raw: bool


class Bar(Event):
    """How the progress bar of a shown rank stands: the end of a line that has no newline yet and was written over."""

    rank: int
    text: str


class FilePiece(Event):
    """A piece of a collected file: as it is where it is plain text, else in base64."""

    path: str
    offset: int
    is_text: bool
    data: str


class Collected(Event):
    """All files of a host have been sent; so many of the job itself stay there, and these are the first of them."""

    kept: list[str]
    count: int
    turn: int


class OutputRow(TypedDict):
    """A file that a rank has written, or a folder of files."""

    rank: int
    path: str
    files: int
    bytes: int


class Outputs(Event):
    """What a host's ranks have written."""

    outputs: list[OutputRow]


class Stacks(Event):
    """The stacks of a host's ranks, by rank."""

    stacks: dict[str, str]


class Abandoned(Event):
    """An agent ends its ranks by itself: its launcher was silent, or a signal asked it to."""

    why: str
    signal: int | None


class Stuck(Event):
    """Processes that cannot be ended."""

    processes: list[str]


class Note(Event):
    """Something that a person should know; the job goes on."""

    text: str


class Idle(Event):
    """Nothing of the run is left on a host."""


AGENT_EVENTS: dict[str, type] = {
    "hello": Hello,
    "facts": FactsEvent,
    "listening": Listening,
    "reached": Reached,
    "files-failed": FilesFailed,
    "started": Started,
    "start-failed": StartFailed,
    "devices-held": DevicesHeld,
    "setup-failed": SetupFailed,
    "import": RankNote,
    "imported": RankNote,
    "joining": RankNote,
    "joined": RankNote,
    "done": RankNote,
    "error": RankError,
    "exited": Exited,
    "pulse": Pulse,
    "activity": Activity,
    "lines": Lines,
    "bar": Bar,
    "file": FilePiece,
    "collected": Collected,
    "outputs": Outputs,
    "stacks": Stacks,
    "abandoned": Abandoned,
    "stuck": Stuck,
    "agent-note": Note,
    "idle": Idle,
}
"""Every event that an agent sends, by its name."""


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

NOT_RECORDED = frozenset(
    {"pulse", "activity", "lines", "bar", "file", "collected", "facts", "listening", "reached", "outputs"}
)
"""Events of agents that events.jsonl does not hold: too many, too large, or from before the run."""


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


class RunOrder(OrderMessage):
    """Start a host's part of the plan."""

    run_dir: str
    attempt: int
    env: dict[str, str]
    unset: tuple[str, ...]
    secrets: dict[str, str]
    setup: str | None
    tail: list[int]
    stdin: int | None
    lost_after: float
    grace: float
    answers: bool
    device_files: str | None
    workdir: str
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

Message = dict[str, Any]
"""A decoded record before its type is known: what the wire carries."""
