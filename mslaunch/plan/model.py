"""The nouns of planning: hosts, facts, processes, files and the plan itself. Frozen, and plain JSON on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from mslaunch.documents.limits import Unreadable
from mslaunch.documents.schema import SCHEMA_VERSION, parse_record
from mslaunch.documents.typed import make
from mslaunch.errors import RecordUnreadable
from mslaunch.hosts import Host
from mslaunch.plan.program import NestedLauncher, Program
from mslaunch.shared import layout
from mslaunch.shared.messages import NumaAnswer, Role, Start

MANY = 100


def _ends_in_port(address: str) -> str | None:
    port = address.rpartition(":")[2]
    return None if port.isascii() and port.isdigit() and len(port) <= 5 else "an address with its port"


@dataclass(frozen=True, slots=True)
class NumaFacts:
    """The NUMA nodes of a host, where they are known."""

    nodes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The cores of each node."""
    devices: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """For each device target, the node that each device is on."""


def read_numa(answer: NumaAnswer | None) -> NumaFacts:
    """Take what an agent answers."""
    if answer is None:
        return NumaFacts()
    cores = {node["node"]: tuple(node["cores"]) for node in answer["nodes"]}
    nodes_of_devices = {}
    for target, devices in answer["devices"].items():
        if devices:
            nodes_of_devices[target] = {device["device"]: device["node"] for device in devices}
    return NumaFacts(cores, nodes_of_devices)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What planning has to know about one host and cannot decide by itself."""

    python: str
    """The interpreter that runs the ranks there."""
    cores: tuple[int, ...]
    """The cores that may be used there."""
    numa: NumaFacts = field(default_factory=NumaFacts)
    """Asked only for jobs that are bound to NUMA nodes."""
    is_assumed: bool = False
    """The host was not asked: this is what a plan can show before that."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoint that a job is given: one file a rank, in the order of ranks, and how they are cut."""

    files: tuple[str, ...]
    strategy: str | None = None
    step: tuple[int, int] | None = None
    """Epoch and step, where the files' names tell."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything impure that planning needs, gathered once and passed in."""

    run_id: str
    run_dir: str
    submit_dir: str
    job_dir: str
    """The folder that code/ mirrors: the root of the project."""
    program: Program
    port: int
    """A port that is free on the scheduler's host."""
    device_target: str
    hosts: Mapping[str, HostFacts]
    environment: Mapping[str, str]
    """The shell's variables; a plan only looks at their names and at thread counts."""
    outside: frozenset[str] = frozenset()
    """Relative paths among the arguments and config values that exist from the submit folder, but not from rank_R."""
    rank_table: str | None = None
    """The text of the rank table that was given."""
    workdir: str = ""
    """Where in the project the ranks work; empty for its root."""
    sources_dir: str = ""
    """Where in the project sources are copied; what lies beside that is linked."""
    notes: tuple[str, ...] = ()
    """What was found out on the way and a person should know."""
    takes_config: bool = True
    """The program's text shows that it takes the argument that names its configuration."""
    nested: NestedLauncher | None = None
    """What in the program starts ranks itself."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What planning has to know of the transport that reaches the hosts."""

    name: str = "local"
    carries_environment: bool = False
    """The variables of this shell that ranks need are sent to the hosts."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that all processes need because of it."""
    passes_stdin: bool = False
    """A rank can have the standard input of the launcher."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the plan wants written, below the run's folder."""

    path: str
    content: str
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job: who it is, where it runs, and what it is given."""

    role: Role
    rank: int | None
    host: str
    device_id: int | None
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Its own variables, on top of the plan's."""
    cwd: str
    log: str
    start: Start = "now"
    """now, when a rank first imports mindspore, or by one of the rendered scripts."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long things may take, in seconds: the settings of the same names."""

    grace: float
    timeout: float | None
    stall_timeout: float | None
    on_stall: str
    on_nan: str
    exit_skew: float
    host_lost_after: float
    launcher_lost_after: float


@dataclass(frozen=True, slots=True)
class Restarts:
    """Whether and how a failed job is started again."""

    limit: int
    """launch.max_restarts."""
    backoff: float
    not_after: tuple[int, ...]
    """launch.no_restart_codes."""
    min_workers: int | None
    checkpoints: str | None
    checkpoint_prefix: str | None


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A metric that the job's own lines tell: the first group of the regex is its value."""

    name: str
    regex: str


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy between a bucket and a host."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Sync:
    """What every host copies before its ranks start, and when they have ended."""

    before: tuple[Copy, ...]
    after: tuple[Copy, ...]
    endpoint: str | None
    """The address of the object store; None: the environment of the ranks tells."""
    pythons: Mapping[str, str]
    """The Python that copies, for each host."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at a job, complete: whoever has this can run it."""

    run_id: str
    attempt: int
    run_dir: str
    submit_dir: str
    job_dir: str
    script: str
    """What the program is called."""
    program: Program
    method: str
    transport: str
    device_target: str
    world_size: int
    master: Annotated[str, _ends_in_port]
    hosts: tuple[Host, ...]
    env: Mapping[str, str]
    """Variables that every process gets."""
    unset: tuple[str, ...]
    """Launch variables of the shell that no process gets."""
    secrets: tuple[str, ...]
    """Variables whose values reach the ranks through the agents' streams and are written nowhere."""
    carried: tuple[str, ...]
    """Variables of this shell that travel to other hosts, by name."""
    tail: tuple[int, ...]
    """Ranks whose output the console shows."""
    limits: TimeLimits
    restarts: Restarts
    setup: str | None
    stdin: int | None
    """The rank that reads the launcher's standard input."""
    files: tuple[File, ...]
    processes: tuple[Process, ...]
    workdir: str
    """Where in the project, and so in their folders, the ranks work; empty for its root."""
    sources_dir: str
    """Where in the project sources are copied; what lies beside that is linked."""
    shared: tuple[str, ...]
    """Folders of the project that the ranks write to, relative to its root."""
    require_init: bool
    """A job of several ranks that use MindSpore fails where none of them calls init()."""
    share_devices: bool
    """NPUs and GPUs may be in use by other runs."""
    allow_launcher: bool
    """Ranks may start launchers themselves."""
    metrics: tuple[LinePattern, ...] | None
    """Metrics that are read from logs besides the known ones; None: nothing is measured."""
    sync: Sync | None
    """Data that hosts fetch before their ranks start, and send when they have ended."""
    report: bool
    """report.html is written when the run has ended."""
    notes: tuple[str, ...]
    """What a person should know, printed once at the start."""
    tags: tuple[str, ...]
    """What the run's labels.json has to begin with."""
    sources: Mapping[str, str]
    """The value of each setting, and where it came from."""
    group: str = ""
    """The group of ranks that this is the plan of; training has one, without a name."""

    @property
    def port(self) -> int:
        """The scheduler's."""
        return int(self.master.rpartition(":")[2])

    @property
    def workers(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.role == "worker")


_PROCESS = tuple(f.name for f in fields(Process))


def process_to_dict(process: Process) -> dict[str, Any]:
    return {name: getattr(process, name) for name in _PROCESS}


def to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values (dataclasses.asdict copies deeply, which 10,000 ranks would feel)."""
    raw = {f.name: getattr(plan, f.name) for f in fields(plan)}
    raw["processes"] = [process_to_dict(process) for process in plan.processes]
    for name, kind in (("hosts", Host), ("files", File), ("metrics", LinePattern)):
        names = [f.name for f in fields(kind)]
        if raw[name] is not None:
            raw[name] = [{key: getattr(item, key) for key in names} for item in raw[name]]
    raw["sync"] = asdict(plan.sync) if plan.sync else None
    for name in ("limits", "restarts", "program"):
        raw[name] = {f.name: getattr(raw[name], f.name) for f in fields(raw[name])}
    return raw


def to_json(plan: Plan) -> str:
    """Write a plan; a large one with a line for each process, which is ten times as quick to write."""
    raw = {"schema_version": SCHEMA_VERSION, **to_dict(plan)}
    if len(plan.processes) <= MANY:
        return json.dumps(raw, indent=1) + "\n"
    lists = {name: raw.pop(name) for name in ("hosts", "files", "processes")}
    blocks = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, items)) + "\n ]" for name, items in lists.items()]
    return json.dumps(raw, indent=1)[:-2] + ",\n" + ",\n".join(blocks) + "\n}\n"


def from_json(text: str, name: str = layout.PLAN) -> Plan:
    """Read a plan; what is none is refused with the reason."""
    try:
        return make(Plan, parse_record(text, name))
    except Unreadable as error:
        raise RecordUnreadable(name, error) from None
