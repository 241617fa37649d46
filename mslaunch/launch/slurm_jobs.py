"""Jobs in Slurm's queue: submitted, looked up, cancelled."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.errors import NotReadyError

_LOOK_EVERY = 2.0
_COMMAND_SECONDS = 60.0

STATES = {
    "PENDING": "queued",
    "CONFIGURING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_FED": "queued",
    "REQUEUE_HOLD": "queued",
    "SPECIAL_EXIT": "queued",
    "RESV_DEL_HOLD": "queued",
    "RUNNING": "running",
    "COMPLETING": "running",
    "STAGE_OUT": "running",
    "SIGNALING": "running",
    "RESIZING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "COMPLETED": "succeeded",
    "CANCELLED": "stopped",
    "PREEMPTED": "stopped",
    "REVOKED": "stopped",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
}
"""What squeue and sacct call a job's state, and what a run's is then."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How Slurm sees a job: its word for the state, and why it waits."""

    state: str
    reason: str = ""


def in_allocation(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("SLURM_JOB_ID") and environment.get("SLURM_JOB_NODELIST"))


def submit(script: str) -> str:
    """Hand a script to sbatch; return the job's id."""
    return ask("sbatch", "--parsable", script).strip().split(";")[0]


_looked: dict[str, tuple[float, Seen | None]] = {}


def look(job: str, since: float = _LOOK_EVERY) -> Seen | None:
    """Ask how a job stands: squeue for those that are there, sacct for those that were, if there is accounting.

    None where Slurm cannot be asked; a job that it no longer knows is UNKNOWN. An answer counts for some seconds.
    """
    when, seen = _looked.get(job, (0.0, None))
    if not when or time.monotonic() - when > since:
        seen = _look(job)
        _looked[job] = (time.monotonic(), seen)
    return seen


def _look(job: str) -> Seen | None:
    queued = _try("squeue", "--noheader", "--states=all", "--format=%T|%r", f"--jobs={job}")
    if queued is None:
        return None
    if queued.returncode == 0 and (line := queued.stdout.strip()):
        state, _, reason = line.splitlines()[0].partition("|")
        return Seen(state, reason)
    if queued.returncode != 0 and "Invalid job id" not in queued.stderr:
        return None  # the controller does not answer
    ended = _try("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State")
    words = ended.stdout.split() if ended is not None and ended.returncode == 0 else []
    return Seen(words[0] if words else "UNKNOWN")


def cancel(job: str) -> None:
    """Ask a job to end: its launcher is told, and stops its ranks in order; one that waits is taken off the queue."""
    _looked.pop(job, None)
    seen = look(job)
    waiting = seen is None or seen.state == "PENDING"
    done = _try("scancel", job) if waiting else _try("scancel", "--batch", "--signal=TERM", job)
    if done is None:
        raise missing("scancel")
    if done.returncode != 0:
        raise NotReadyError(f"scancel {job}: {_last_line(done.stderr)}")


def kill(job: str) -> None:
    """End a job that does not end when it is asked to."""
    _try("scancel", job)


def ask(*command: str) -> str:
    done = _try(*command)
    if done is None:
        raise missing(command[0])
    if done.returncode != 0:
        said = _last_line(done.stderr) or f"it ended with code {done.returncode}"
        raise NotReadyError(f"{command[0]} refuses: {said.removeprefix(f'{command[0]}: ').removeprefix('error: ')}")
    return done.stdout


def _try(*command: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_COMMAND_SECONDS
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


def missing(program: str) -> NotReadyError:
    return NotReadyError(f"{program} is not on PATH or does not answer. --transport slurm needs Slurm's commands here.")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
