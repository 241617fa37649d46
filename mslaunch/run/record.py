"""run.json: how a run stands and how it ended, for people and scripts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, get_args

from mslaunch.diagnose.verdict import Verdict
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.schema import SCHEMA_VERSION, RunStatus, check_schema, parse_record
from mslaunch.documents.typed import make
from mslaunch.errors import RecordUnreadable
from mslaunch.plan.model import Plan, from_json
from mslaunch.ranges import format_ranges
from mslaunch.run import launchers
from mslaunch.run.launchers import Launcher
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import write_atomically
from mslaunch.shared.messages import OutputRow

RankStatus = Literal["waiting", "running", "ok", "stopped", "failed", "gone", "not started"]
STATES: tuple[RunStatus, ...] = get_args(RunStatus)
ENDED = tuple(state for state in STATES if state not in ("queued", "running"))
LARGEST = 64 << 20  # 65,536 ranks, the most that HCCL takes, fit four times
LARGEST_PLAN = 512 << 20


def is_time(text: str) -> str | None:
    """Say what is expected where a text is no time."""
    with suppress(ValueError):
        if datetime.fromisoformat(text).tzinfo is not None:
            return None
    return "a time with its offset"


def is_name(text: str) -> str | None:
    """Say what is expected where a text cannot be part of a file's name."""
    plain = text.isprintable() and "/" not in text and text not in ("", ".", "..") and len(text) <= 200
    return None if plain else "a name without slashes"


Time = Annotated[str, is_time]  # ISO 8601 with an offset


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank's place and fate."""

    rank: int
    host: str
    device_id: int | None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started: Time | None = None
    ended: Time | None = None
    stopped: bool = False  # it did not fail: mslaunch ended it
    group: str = ""
    """The ranks that make up one job for MindSpore, and are started again together; training has one group."""

    @property
    def state(self) -> RankStatus:
        if self.ended is None:
            return "running" if self.started else "waiting"
        if self.exit_code == 0:
            return "ok"
        if self.stopped:
            return "stopped"
        if self.exit_code is None and self.signal is None:  # nobody has seen its end
            return "gone" if self.started else "not started"
        return "failed"


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """How an earlier attempt ended, and what the next one resumed from."""

    attempt: int
    ended: Time | None
    exit_code: int | None
    verdict: Verdict | None
    resume: Mapping[int, str] | None
    group: str = ""


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A file, or a folder of files, that ranks have written: the same path in the folder of each, or in the run's."""

    path: str
    ranks: str  # which ranks have it, as ranges; nothing where all ranks share it
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class WarningRecord:
    """A reason to doubt the result of a run, however its ranks have ended."""

    kind: str
    text: str


def sum_outputs(rows: Iterable[OutputRow], most: int = 50) -> tuple[OutputRecord, ...]:
    """Put the rows of all ranks together, the largest first."""
    by_path: dict[str, dict[int | None, OutputRow]] = {}
    for row in rows:
        by_path.setdefault(row["path"], {})[row["rank"]] = row  # hosts that share the run's folder all list code/
    sums = [
        OutputRecord(
            path,
            format_ranges(sorted(rank for rank in same if rank is not None)),
            sum(row["files"] for row in same.values()),
            sum(row["bytes"] for row in same.values()),
        )
        for path, same in by_path.items()
    ]
    return tuple(sorted(sums, key=lambda output: (-output.bytes, output.path))[:most])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What run.json holds."""

    run_id: str
    state: RunStatus
    started: Time
    ended: Time | None
    launcher: Launcher | None
    world_size: int
    method: str
    transport: Annotated[str, is_name]
    script: str
    ranks: tuple[RankRecord, ...]
    attempts: tuple[AttemptSummary, ...] = ()
    """How earlier attempts ended, and what the present one resumed from."""
    exit_code: int | None = None
    verdict: Verdict | None = None
    outputs: tuple[OutputRecord, ...] = ()  # what the ranks have written into their folders, the largest first
    notes: tuple[str, ...] = ()  # what the launcher has reported about the run, the last ones
    warnings: tuple[WarningRecord, ...] = ()  # reasons to doubt the result of the last attempt
    bytes: int | None = None  # how much room the run's folder took on this machine when the run ended
    seconds: float | None = None
    """How long it took, by a clock that nobody sets; None while it runs, and where its launcher was lost."""

    def to_dict(self) -> dict[str, Any]:
        raw = {"schema_version": SCHEMA_VERSION, **asdict(replace(self, ranks=()))}
        # ten times as quick as asdict, for 10,000 ranks
        raw["ranks"] = [{name: getattr(rank, name) for name in RankRecord.__slots__} for rank in self.ranks]
        return raw

    def end(
        self, state: RunStatus, ended: str, exit_code: int | None = None, verdict: Verdict | None = None
    ) -> RunRecord:
        """Return the record of the run once it is over: a rank whose end nobody has seen ended no later."""
        ranks = list(self.ranks)
        for at, rank in enumerate(ranks):
            if rank.ended is None:
                ranks[at] = replace(rank, ended=ended, stopped=state == "stopped" and rank.started is not None)
        return replace(self, state=state, ended=ended, exit_code=exit_code, verdict=verdict, ranks=tuple(ranks))

    def attempt_of(self, group: str = "") -> int:
        """Return the number of a group's present attempt; the first one is 0."""
        return sum(attempt.group == group for attempt in self.attempts)

    def seconds_taken(self, now: datetime) -> float:
        """Return how long it has taken, up to its end or up to now: by the wall clock only where nothing else tells."""
        if self.seconds is not None:
            return self.seconds
        began = self.launcher.began if self.launcher and self.launcher.boot_id == launchers.boot_id() else None
        if self.state == "running" and began is not None:
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
        end = datetime.fromisoformat(self.ended) if self.ended else now
        return max(0.0, (end - datetime.fromisoformat(self.started)).total_seconds())


def iso(seconds: float) -> str:
    """Write a time as ISO 8601 with its offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec="milliseconds")


def rank_records(plan: Plan) -> tuple[RankRecord, ...]:
    """The records of ranks that have not started, in order."""
    ranks = [
        RankRecord(int(worker.rank or 0), worker.host, worker.device_id, group=plan.group) for worker in plan.workers
    ]
    return tuple(sorted(ranks, key=lambda rank: rank.rank))


def queued(plan: Plan, now: float, in_process: bool = False) -> RunRecord:
    """The record of a run that has not begun; `in_process` where its launcher is a thread of another program."""
    return RunRecord(
        run_id=plan.run_id,
        state="queued",
        started=iso(now),
        ended=None,
        launcher=launchers.this_process(in_process),
        world_size=plan.world_size,
        method=plan.method,
        transport=plan.transport,
        script=plan.script,
        ranks=rank_records(plan),
    )


def save(folder: RunFolder, record: RunRecord) -> None:
    """Write run.json; how a run ended takes the room that was reserved for it."""
    if record.state in ENDED:
        with suppress(OSError):
            folder.reserve.unlink()
    raw = record.to_dict()
    ranks = ",\n  ".join(map(json.dumps, raw.pop("ranks")))  # a line for each: quick to write for 10,000 of them
    write_atomically(folder.record, json.dumps(raw, indent=1)[:-2] + f',\n "ranks": [\n  {ranks}\n ]\n}}\n')


def read(folder: RunFolder) -> RunRecord:
    """Read run.json as it stands."""
    name = str(folder.record)
    try:
        return make(RunRecord, parse_record(read_text(folder.record, LARGEST, only_files=True), name))
    except (OSError, Unreadable) as error:
        raise RecordUnreadable(name, error) from None


def from_value(raw: object) -> RunRecord:
    """Make a record of a value of JSON, or raise Unreadable."""
    if isinstance(raw, dict):
        check_schema(raw.get("schema_version", SCHEMA_VERSION), "the record")
    return make(RunRecord, raw)


def from_dict(raw: Mapping[str, Any], name: str) -> RunRecord:
    """Read a record that a launcher has sent."""
    try:
        return make(RunRecord, raw)
    except Unreadable as error:
        raise RecordUnreadable(name, error) from None


def read_plan(folder: RunFolder) -> Plan:
    """Read plan.json as it stands."""
    name = str(folder.plan)
    try:
        return from_json(read_text(folder.plan, LARGEST_PLAN, only_files=True), name)
    except (OSError, Unreadable) as error:
        raise RecordUnreadable(name, error) from None


def record_of_logs(name: str, verdict: Verdict | None) -> RunRecord:
    """Make a record for a folder of logs that mslaunch did not write, so that both are shown alike."""
    return RunRecord(name, "failed", "", None, None, 0, "", "", "", (), verdict=verdict)
