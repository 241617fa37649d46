"""What agents send: events and facts, each with its type."""

from __future__ import annotations

from typing import TypedDict

from mslaunch.shared.messages.metric_rows import MetricRow


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


class DeviceLimit(TypedDict):
    """What limits the devices that ranks see: `by` that variable, of so many that are there.

    `files` are the numbers of the device files that are seen, in the order of the devices; null where it is not known.
    """

    by: str
    of: int
    files: list[int | None]


class HostFactsAnswer(TypedDict):
    """What an agent has found out about its host."""

    python: str
    version: str
    mindspore: str | None
    cores: list[int]
    devices: dict[str, list[int]]
    limits: dict[str, DeviceLimit]
    busy: dict[str, str]
    held: dict[str, str]
    gpus: list[int]
    clock: float
    """When the host began to look."""
    took: float
    """How many seconds that took."""
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
    """A process of the plan could not be started, nor `launch.setup` or the agent, which `role` names then."""

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


class SyncFailed(Event):
    """What launch.sync has a host fetch before its ranks start could not be fetched; nothing was started."""

    why: str


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
    kernel: str


class NestedLauncher(Event):
    """A rank has started a launcher, or ranks of its own; `command` is the command line that shows it."""

    rank: int
    command: str


class Pulse(Event):
    """The answer to a ping: for how many seconds no rank of the host has written anything."""

    quiet: float


class Activity(Event):
    """For how many seconds each rank of the host has printed nothing (silent), and has not computed either (idle)."""

    silent: dict[str, float]
    idle: dict[str, float]


class Metrics(Event):
    """What was measured on a host since the event before."""

    rows: list[MetricRow]


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
    """A file that a rank has written, or a folder of files; one that all ranks share has no rank."""

    rank: int | None
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
    "sync-failed": SyncFailed,
    "import": RankNote,
    "imported": RankNote,
    "joining": RankNote,
    "joined": RankNote,
    "done": RankNote,
    "error": RankError,
    "exited": Exited,
    "nested-launcher": NestedLauncher,
    "pulse": Pulse,
    "activity": Activity,
    "metrics": Metrics,
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

NOT_RECORDED = frozenset(
    {"pulse", "activity", "metrics", "lines", "bar", "file", "collected", "facts", "listening", "reached", "outputs"}
)
"""Events of agents that events.jsonl does not hold: too many, too large, or from before the run."""
