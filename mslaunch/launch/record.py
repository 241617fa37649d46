"""run.json: how a run stands and how it ended, for people and scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mslaunch.errors import RecordUnreadable
from mslaunch.launch import identity
from mslaunch.launch.run_folder import RunFolder, write_atomically
from mslaunch.plan.model import Plan

ENDED = ("succeeded", "failed", "stopped", "lost")


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
class RunRecord:
    """What run.json holds."""

    run_id: str
    state: str
    started: str
    ended: str | None
    launcher: dict[str, Any] | None
    world_size: int
    method: str
    transport: str
    script: str
    ranks: tuple[RankRecord, ...]
    attempts: tuple[dict[str, Any], ...] = ()
    """How earlier attempts ended, and what the present one resumed from."""
    exit_code: int | None = None
    verdict: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        raw = {name: getattr(self, name) for name in self.__slots__}
        raw["ranks"] = [{name: getattr(rank, name) for name in RankRecord.__slots__} for rank in self.ranks]
        return raw


def iso(seconds: float) -> str:
    """Write a time as ISO 8601 with its offset."""
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().isoformat(timespec="milliseconds")


def queued(plan: Plan, now: float) -> RunRecord:
    ranks = tuple(RankRecord(int(worker.rank or 0), worker.host, worker.device_id) for worker in plan.workers)
    return RunRecord(
        run_id=plan.run_id,
        state="queued",
        started=iso(now),
        ended=None,
        launcher=identity.this_process(),
        world_size=plan.world_size,
        method=plan.method,
        transport=plan.transport,
        script=plan.script,
        ranks=ranks,
    )


def save(folder: RunFolder, record: RunRecord) -> None:
    write_atomically(folder.record, json.dumps(record.to_dict(), indent=1) + "\n")


def load(folder: RunFolder) -> RunRecord:
    """Read run.json; a run whose launcher is no longer there is lost, whatever the file still says."""
    try:
        raw = json.loads(folder.record.read_text())
        raw["ranks"] = tuple(RankRecord(**rank) for rank in raw["ranks"])
        raw["attempts"] = tuple(raw["attempts"])
        record = RunRecord(**raw)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordUnreadable(str(folder.record), str(error)) from None
    launcher = record.launcher
    if (
        record.state in ("queued", "running")
        and launcher
        and identity.is_here(launcher)
        and not identity.is_alive(launcher)
    ):
        return replace(record, state="lost")
    return record
