"""Whether a failed job is started again, and with what: a fresh port, and the newest checkpoint all ranks have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mslaunch.checkpoint.files import newest_complete
from mslaunch.launch.facts import choose_port
from mslaunch.launch.record import RunRecord
from mslaunch.launch.run_folder import RunFolder, write_atomically, write_files
from mslaunch.launch.verdict import read_error
from mslaunch.plan.attempt import may_restart, next_attempt, pause
from mslaunch.plan.methods import RANKS
from mslaunch.plan.model import Plan, to_json


@dataclass(frozen=True, slots=True)
class Again:
    """The next attempt, and what is said about it."""

    plan: Plan
    pause: float
    note: str
    summary: dict[str, Any]


def prepare_next(plan: Plan, ended: RunRecord, folder: RunFolder) -> Again | None:
    """Prepare the next attempt, or return None where there is to be none."""
    verdict = ended.verdict
    if ended.state != "failed" or verdict is None:
        return None
    error = read_error(folder, verdict["rank"]) or {}
    if not may_restart(plan, verdict["exit_code"], verdict["cause"], error.get("type")):
        return None
    resume = find_resume(plan, folder)
    again = next_attempt(plan, choose_port(None), resume)
    try:
        folder.plan.rename(folder.earlier_plan(plan.attempt))
        write_files(folder.path, tuple(file for file in again.files if file.path == RANKS))
        write_atomically(folder.plan, to_json(again))
    except OSError:
        return None  # a full disk: the verdict stands
    source = f"resuming from {Path(next(iter(resume.values()))).name}" if resume else "from the start"
    seconds = pause(plan)
    note = f"attempt {again.attempt + 1} of {plan.restarts.limit + 1} in {seconds:g} s, {source}"
    summary = {
        "attempt": plan.attempt,
        "ended": ended.ended,
        "exit_code": ended.exit_code,
        "verdict": verdict,
        "resume": resume or None,
    }
    return Again(again, seconds, note, summary)


def find_resume(plan: Plan, folder: RunFolder) -> dict[int, str]:
    """Find, for every rank, its file of the newest checkpoint that is complete on all ranks."""
    if plan.restarts.checkpoints is None:
        return {}
    folders = {}
    for worker in plan.workers:
        rank = int(worker.rank or 0)
        folders[rank] = folder.rank(rank) / plan.restarts.checkpoints.replace("{rank}", str(rank))
    began = (folder.earlier_plan(0) if plan.attempt else folder.plan).stat().st_mtime
    found = newest_complete(folders, since=began)
    return {rank: str(path) for rank, path in found.items()}
