"""run.json: how a run stands and how it ended, for people and scripts."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mslaunch.errors import RecordUnreadable
from mslaunch.launch import identity, slurm_jobs
from mslaunch.launch.run_folder import RunFolder, write_atomically
from mslaunch.launch.slurm_jobs import STATES
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
    record = read(folder)
    launcher = record.launcher
    if record.state in ENDED:
        return _unless_queued_again(folder, record)
    job = slurm_job(folder)
    alive = launcher is not None and identity.is_here(launcher) and identity.is_alive(launcher)
    if alive and (record.state == "running" or job is None):
        return record  # while it is queued, that is only whoever submitted it
    if job is None and record.transport == "slurm" and record.state == "queued":
        job = _found_again(folder)
    if job is not None:
        return _as_slurm_sees(folder, record, job)
    return replace(record, state="lost") if launcher and identity.is_here(launcher) else record


def slurm_job(folder: RunFolder) -> str | None:
    """Return the id of the Slurm job that a run belongs to, if it does."""
    with suppress(OSError):
        return folder.slurm_job.read_text().strip() or None
    return None


def _unless_queued_again(folder: RunFolder, record: RunRecord) -> RunRecord:
    """A run that has ended may be waiting for its next start: after a preemption, or since somebody wants it so."""
    job = slurm_job(folder)
    if job is None or not slurm_jobs.is_queued(job):
        return record
    return replace(record, state="queued", ended=None, exit_code=None)


def _found_again(folder: RunFolder) -> str | None:
    """The job of a run whose submitter died before it could write the id down: it has the run's name."""
    job = slurm_jobs.find(folder.run_id)
    if job is not None:
        with suppress(OSError):
            write_atomically(folder.slurm_job, job)
    return job


def _as_slurm_sees(folder: RunFolder, record: RunRecord, job: str) -> RunRecord:
    """How a run stands whose launcher is elsewhere, has not begun, or has gone without a word."""
    seen = slurm_jobs.look(job)
    if seen is None:
        return record
    state = STATES.get(seen.state, "lost")
    if state in ("queued", "running"):
        return record if state == record.state else replace(record, state=state)
    record = read(folder)  # it may have said how it ended just now
    if record.state in ENDED:
        return record
    ended = datetime.fromisoformat(seen.ended).astimezone().isoformat(timespec="milliseconds") if seen.ended else None
    if state == "stopped":
        return replace(record, state=state, ended=ended, exit_code=128 + signal.SIGTERM)
    state = "lost" if state == "succeeded" else state
    return replace(record, state=state, ended=ended, verdict=_slurm_verdict(job, seen.state))


def _slurm_verdict(job: str, state: str) -> dict[str, Any]:
    """What can be said where the launcher could not."""
    return bare_verdict(
        "slurm",
        f"Slurm job {job} has ended ({state}), and its launcher has not said why.",
        f"`sacct -j {job}` and launcher.log in the run's folder may tell more.",
    )


def bare_verdict(cause: str, summary: str, advice: str, exit_code: int | None = None) -> dict[str, Any]:
    """A verdict about a run of which no rank can tell anything."""
    nothing = dict.fromkeys(("rank", "host", "signal", "traceback", "log", "line"))
    told: dict[str, Any] = {"exit_code": exit_code, "cause": cause, "summary": summary, "advice": advice, "victims": []}
    return {**nothing, **told}


def read(folder: RunFolder) -> RunRecord:
    """Read run.json as it stands."""
    try:
        raw = json.loads(folder.record.read_text())
        raw["ranks"] = tuple(RankRecord(**rank) for rank in raw["ranks"])
        raw["attempts"] = tuple(raw["attempts"])
        return RunRecord(**raw)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecordUnreadable(str(folder.record), str(error)) from None
