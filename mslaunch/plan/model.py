"""The nouns of planning: hosts, facts, processes, files and the plan itself. Frozen, and plain JSON on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Role = Literal["scheduler", "worker", "script"]
Start = Literal["now", "on-import", "by-script"]


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the job and the devices that it gives."""

    name: str
    address: str
    devices: tuple[int, ...]
    user: str | None = None
    port: int | None = None
    python: str | None = None
    """The interpreter there, where it is not the job's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for its ranks alone."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What planning has to know about one host and cannot decide by itself."""

    python: str
    """The interpreter that runs the ranks there."""
    cores: tuple[int, ...]
    """The cores that may be used there."""


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
    """The folder that code/ mirrors."""
    script: str
    """The script's path inside the job's folder."""
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
class Limits:
    """How long things may take, in seconds."""

    grace: float = 10.0
    timeout: float | None = None
    stall_timeout: float | None = None
    on_stall: str = "stop"
    exit_skew: float = 300.0
    lost_after: float = 10.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """Whether and how a failed job is started again."""

    limit: int = 0
    backoff: float = 5.0
    not_after: tuple[int, ...] = ()
    """Exit codes after which no restart is tried."""
    min_workers: int | None = None
    """A job that has lost a host goes on with those left, if they have so many ranks."""
    checkpoints: str | None = None
    """Folder of a rank's checkpoints, relative to its own; {rank} stands for its number."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at a job, complete: whoever has this can run it."""

    run_id: str
    attempt: int
    run_dir: str
    submit_dir: str
    job_dir: str
    script: str
    method: str
    transport: str
    device_target: str
    world_size: int
    master: str
    hosts: tuple[Host, ...]
    env: Mapping[str, str]
    """Variables that every process gets."""
    unset: tuple[str, ...]
    """Launch variables of the shell that no process gets."""
    secrets: tuple[str, ...]
    """Variables whose values are taken from the environment at the start and are written nowhere."""
    carried: tuple[str, ...]
    """Variables of this shell that travel to other hosts, by name."""
    tail: tuple[int, ...]
    """Ranks whose output the console shows."""
    limits: Limits
    restarts: Restarts
    setup: str | None
    files: tuple[File, ...]
    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()
    """What a person should know, said once at the start."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The value of each setting, and where it came from."""

    @property
    def port(self) -> int:
        """The scheduler's."""
        return int(self.master.rpartition(":")[2])

    @property
    def workers(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.role == "worker")


def to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values (dataclasses.asdict copies deeply, which 10,000 ranks would feel)."""
    raw = {f.name: getattr(plan, f.name) for f in fields(plan)}
    for name, kind in (("hosts", Host), ("files", File), ("processes", Process)):
        names = [f.name for f in fields(kind)]
        raw[name] = [{key: getattr(item, key) for key in names} for item in raw[name]]
    for name in ("limits", "restarts"):
        raw[name] = {f.name: getattr(raw[name], f.name) for f in fields(raw[name])}
    return raw


def to_json(plan: Plan) -> str:
    return json.dumps(to_dict(plan), indent=1) + "\n"


def from_json(text: str) -> Plan:
    raw = json.loads(text)
    raw["hosts"] = tuple(Host(**_tuples(item)) for item in raw["hosts"])
    raw["files"] = tuple(File(**item) for item in raw["files"])
    raw["processes"] = tuple(Process(**_tuples(item)) for item in raw["processes"])
    raw["limits"], raw["restarts"] = Limits(**raw["limits"]), Restarts(**_tuples(raw["restarts"]))
    return Plan(**_tuples(raw))


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
