"""run.json: how a run stands and how it ended, for people and scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from mslaunch import identity
from mslaunch.diagnose.judge import Verdict, read_verdict
from mslaunch.errors import RecordUnreadable
from mslaunch.identity import Launcher
from mslaunch.messages import SCHEMA_VERSION, OutputRow
from mslaunch.plan.model import Plan, check_schema, from_json, known_fields
from mslaunch.ranges import format_ranges
from mslaunch.store.folder import write_atomically
from mslaunch.store.layout import RunFolder

ENDED = ("succeeded", "failed", "stopped", "lost")
"""The states of runs that are over."""


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank's place and fate."""

    rank: int
    host: str
    device_id: int | None
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started: str | None = None
    ended: str | None = None
    stopped: bool = False
    """It did not fail: mslaunch ended it."""

    @property
    def state(self) -> str:
        if self.ended is not None:
            return "ok" if self.exit_code == 0 else "stopped" if self.stopped else "failed"
        return "running" if self.started else "waiting"


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """How an earlier attempt ended, and what the next one resumed from."""

    attempt: int
    ended: str | None
    exit_code: int | None
    verdict: Verdict | None
    resume: Mapping[int, str] | None

    def to_dict(self) -> dict[str, Any]:
        raw = {name: getattr(self, name) for name in self.__slots__}
        raw["verdict"] = self.verdict.to_dict() if self.verdict else None
        return raw


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A file, or a folder of files, that ranks have written: the same path in the folder of each."""

    path: str
    ranks: str
    """Which ranks have it, as ranges."""
    files: int
    bytes: int


def sum_outputs(rows: Iterable[OutputRow], most: int = 50) -> tuple[OutputRecord, ...]:
    """Put the rows of all ranks together, the largest first."""
    by_path: dict[str, list[OutputRow]] = {}
    for row in rows:
        by_path.setdefault(row["path"], []).append(row)
    sums = [
        OutputRecord(
            path,
            format_ranges(sorted({row["rank"] for row in same})),
            sum(row["files"] for row in same),
            sum(row["bytes"] for row in same),
        )
        for path, same in by_path.items()
    ]
    return tuple(sorted(sums, key=lambda one: (-one.bytes, one.path))[:most])


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What run.json holds."""

    run_id: str
    state: str
    started: str
    ended: str | None
    launcher: Launcher | None
    world_size: int
    method: str
    transport: str
    script: str
    ranks: tuple[RankRecord, ...]
    attempts: tuple[AttemptSummary, ...] = ()
    """How earlier attempts ended, and what the present one resumed from."""
    exit_code: int | None = None
    verdict: Verdict | None = None
    outputs: tuple[OutputRecord, ...] = ()
    """What the ranks have written into their folders, the largest first."""
    notes: tuple[str, ...] = ()
    """What the launcher has told people about the run, the last ones."""

    def to_dict(self) -> dict[str, Any]:
        raw = {"schema_version": SCHEMA_VERSION, **{name: getattr(self, name) for name in self.__slots__}}
        raw["launcher"] = self.launcher.to_dict() if self.launcher else None
        raw["ranks"] = [{name: getattr(rank, name) for name in RankRecord.__slots__} for rank in self.ranks]
        raw["attempts"] = [attempt.to_dict() for attempt in self.attempts]
        raw["verdict"] = self.verdict.to_dict() if self.verdict else None
        raw["outputs"] = [{name: getattr(one, name) for name in OutputRecord.__slots__} for one in self.outputs]
        return raw


def iso(seconds: float) -> str:
    """Write a time as ISO 8601 with its offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec="milliseconds")


def queued(plan: Plan, now: float, in_process: bool = False) -> RunRecord:
    """The record of a run that has not begun; `in_process` where its launcher is a thread of another program."""
    ranks = tuple(RankRecord(int(worker.rank or 0), worker.host, worker.device_id) for worker in plan.workers)
    return RunRecord(
        run_id=plan.run_id,
        state="queued",
        started=iso(now),
        ended=None,
        launcher=identity.this_process(in_process),
        world_size=plan.world_size,
        method=plan.method,
        transport=plan.transport,
        script=plan.script,
        ranks=ranks,
    )


def save(folder: RunFolder, record: RunRecord) -> None:
    write_atomically(folder.record, to_json(record))


def to_json(record: RunRecord) -> str:
    """Write a record with a line for each rank: quick to write for 10,000 of them, and easy to read."""
    raw = record.to_dict()
    ranks = ",\n  ".join(map(json.dumps, raw.pop("ranks")))
    return json.dumps(raw, indent=1)[:-2] + f',\n "ranks": [\n  {ranks}\n ]\n}}\n'


def read(folder: RunFolder) -> RunRecord:
    """Read run.json as it stands."""
    try:
        raw = json.loads(folder.record.read_text())
        check_schema(raw.pop("schema_version", SCHEMA_VERSION), str(folder.record))
        raw["ranks"] = tuple(RankRecord(**known_fields(RankRecord, rank)) for rank in raw["ranks"])
        raw["attempts"] = tuple(_read_attempt(attempt) for attempt in raw["attempts"])
        raw["launcher"] = identity.read_launcher(raw["launcher"]) if raw["launcher"] else None
        raw["verdict"] = read_verdict(raw["verdict"]) if raw["verdict"] else None
        raw["outputs"] = tuple(OutputRecord(**known_fields(OutputRecord, one)) for one in raw.get("outputs") or ())
        raw["notes"] = tuple(map(str, raw.get("notes") or ()))
        return _checked(RunRecord(**known_fields(RunRecord, raw)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordUnreadable(str(folder.record), error) from None


_TEXT = ("run_id", "state", "started", "method", "transport", "script")


def _checked(found: RunRecord) -> RunRecord:
    """Refuse values that no mslaunch has written: what shows a record counts on their kinds."""
    numbers = [found.world_size, found.exit_code or 0]
    for rank in found.ranks:
        numbers += [rank.rank, rank.exit_code or 0, rank.signal or 0]
    if not all(isinstance(getattr(found, name), str) for name in _TEXT):
        raise ValueError(f"{', '.join(_TEXT)} must be text")
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError("ranks, codes and signals must be numbers")
    for when in filter(None, (found.started, found.ended)):
        if datetime.fromisoformat(when).tzinfo is None:
            raise ValueError(f"{when!r} is a time without offset")
    return found


def read_plan(folder: RunFolder) -> Plan:
    """Read plan.json as it stands."""
    try:
        return from_json(folder.plan.read_text(), str(folder.plan))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RecordUnreadable(str(folder.plan), error) from None


def _read_attempt(raw: dict[str, Any]) -> AttemptSummary:
    verdict = read_verdict(raw["verdict"]) if raw["verdict"] else None
    return AttemptSummary(raw["attempt"], raw["ended"], raw["exit_code"], verdict, raw["resume"])
