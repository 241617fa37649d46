"""Jobs in Slurm's queue: submitted, looked up, cancelled."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from mslaunch.documents.schema import RunStatus
from mslaunch.errors import NotReadyError
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.transports.base import JobState

_LOOK_EVERY = 2.0
_SILENT_FOR = 30.0
_COMMAND_SECONDS = 60.0

STATES: dict[str, RunStatus] = {
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


def submit(script: Path, secrets: Mapping[str, str]) -> str:
    """Hand a script to sbatch; return the job's id. Secrets go with the environment, which Slurm gives to the job.

    Its options are given once more: SBATCH_* variables outrank what stands in a script, and not what is typed.
    """
    head = takewhile(lambda line: line.startswith("#"), script.read_text(errors="surrogateescape").splitlines())
    words = [word for line in head if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]
    # No limit: whoever gave up could not tell whether the job is in the queue. Ctrl-C waits for the answer too.
    env = {**os.environ, **{f"{RANKS_ONLY}{name}": value for name, value in secrets.items()}}
    said = ask("sbatch", "--parsable", *words, str(script), seconds=None, env=env)
    job = said.strip().split(";")[0]
    if not job.isdigit():
        raise NotReadyError(f"sbatch gave no job id, but {said.strip()!r}. Leave out the option that makes it do so.")
    return job


class _Queue:
    """The queue as it was last seen; asked for as a whole, since a list of runs has many jobs in it."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] | None = {}
        self._when: float | None = None

    def jobs(self, since: float = _LOOK_EVERY) -> dict[str, JobState] | None:
        """Every job of this user; None where Slurm does not answer, and then it is not asked again for a while."""
        age = math.inf if self._when is None else time.monotonic() - self._when
        if age > (since if self._jobs is not None else _SILENT_FOR):
            self._jobs, self._when = _ask_queue(_mine()), time.monotonic()
        return self._jobs

    def forget(self) -> None:
        self._when = None


_queue = _Queue()


def look(job: str, since: float = _LOOK_EVERY) -> JobState | None:
    """Ask how a job stands: squeue for those that are there, sacct for those that were, if there is accounting.

    None where Slurm cannot be asked; a job that it no longer knows is UNKNOWN. An answer counts for some seconds.
    """
    mine = _queue.jobs(since)
    if mine is None:
        return None
    array = job.partition("_")[0]  # members that were cancelled before they started go by the array's id
    seen = mine.get(job) or mine.get(array) or (_ask_queue(f"--jobs={job}") or {}).get(job)
    if seen is not None:
        return seen
    ended = _try("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,End")
    said = ended.stdout.strip().splitlines() if ended is not None and ended.returncode == 0 else []
    state, _, when = said[0].partition("|") if said else ("UNKNOWN", "", "")
    return _seen(state.split()[0] if state else "UNKNOWN", "", when)


def is_queued(job: str) -> bool:
    """Tell whether a job waits for its start; asks for nothing that is not in the queue."""
    seen = (_queue.jobs() or {}).get(job)
    return seen is not None and seen.state == "queued"


def find(name: str) -> str | None:
    """Find this user's newest job of this name, for a run whose submitter did not live to write its id down."""
    jobs = _ask_queue(_mine(), f"--name={name}") or {}
    return max(jobs, key=_number, default=None)


def _number(job: str) -> int:
    """The number of a job: of 12_3, a member of an array, and of 12+3, a part of a heterogeneous job, that is 12."""
    found = re.match(r"\d{1,18}", job)
    return int(found[0]) if found else 0


def _mine() -> str:
    """The option for jobs of this user, as old versions of squeue take it too."""
    return f"--user={os.geteuid()}"


def _ask_queue(*which: str) -> dict[str, JobState] | None:
    done = _try("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%e|%r", *which)
    if done is None or (done.returncode != 0 and "Invalid job id" not in done.stderr):
        return None
    rows = (line.split("|", 3) for line in done.stdout.splitlines() if line.count("|") >= 3)
    return {job: _seen(state, reason, ended) for job, state, ended, reason in rows}


def _seen(word: str, reason: str, ended: str) -> JobState:
    """Turn what squeue or sacct says of a job into a run's state; a job that Slurm does not know is lost."""
    reason = "" if reason == "None" else reason
    return JobState(STATES.get(word, "lost"), word, reason, _time(ended), word == "COMPLETING")


def _time(ended: str) -> str | None:
    """Slurm writes N/A or Unknown for what has not ended."""
    try:
        return datetime.fromisoformat(ended).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None


def cancel(job: str) -> None:
    """Ask a job to end: its launcher is told, and stops its ranks in order; one that waits is taken off the queue."""
    _queue.forget()
    seen = look(job)
    waiting = seen is None or seen.word == "PENDING"
    done = _try("scancel", job) if waiting else _try("scancel", "--batch", "--signal=TERM", job)
    if done is None:
        raise missing("scancel")
    if done.returncode != 0:
        raise NotReadyError(f"scancel {job}: {_one_line(done.stderr)}")


def cancel_array(job: str) -> None:
    """Ask all members of an array to end: those that wait are taken off the queue, launchers that run are told."""
    _queue.forget()
    for options in (("--state=PENDING",), ("--batch", "--signal=TERM")):
        if _try("scancel", "--quiet", *options, job) is None:
            raise missing("scancel")


def kill(job: str) -> None:
    """End a job that does not end when it is asked to."""
    _try("scancel", job)


def ask(*command: str, seconds: float | None = _COMMAND_SECONDS, env: Mapping[str, str] | None = None) -> str:
    done = _try(*command, seconds=seconds, env=env)
    if done is None:
        raise missing(command[0])
    if done.returncode != 0:
        raise NotReadyError(f"{command[0]} refuses: {_one_line(done.stderr) or f'code {done.returncode}'}")
    return done.stdout


def _try(
    *command: str, seconds: float | None = _COMMAND_SECONDS, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds,
            env=env,
            start_new_session=True,  # Ctrl-C is for mslaunch
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


def missing(program: str) -> NotReadyError:
    return NotReadyError(f"{program} is not on PATH or does not answer. --transport slurm needs Slurm's commands here.")


def _one_line(text: str) -> str:
    """What a command of Slurm's complained of, without its own name before each line."""
    return " ".join(re.sub(r"^\w+: (error: )?", "", line) for line in text.strip().splitlines())
