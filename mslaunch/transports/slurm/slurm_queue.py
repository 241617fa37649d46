"""Slurm's queue: jobs are submitted, looked up and cancelled by its commands."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.documents.schema import RunStatus
from mslaunch.errors import NotReadyError
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.transports.base import Command, CurrentJob, JobQueue, JobState
from mslaunch.transports.cluster_environment import in_slurm_allocation
from mslaunch.transports.slurm import batch_script

if TYPE_CHECKING:
    from mslaunch.plan.model import File, Plan
    from mslaunch.plan.spec import JobSpec

_LOOK_EVERY = 2.0
_SILENT_FOR = 30.0
_COMMAND_SECONDS = 60.0
_OWN_JOBS = f"--user={os.geteuid()}"  # as old versions of squeue take it too

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


class SlurmQueue(JobQueue):
    """Slurm's jobs of this user, asked for as a whole, since a list of runs has many jobs in it."""

    label = "Slurm"

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] | None = {}
        self._asked_at: float | None = None

    def current_job(self, environment: Mapping[str, str]) -> CurrentJob | None:
        if not in_slurm_allocation(environment):
            return None
        job = environment["SLURM_JOB_ID"]
        if environment.get("SLURM_ARRAY_JOB_ID") and environment.get("SLURM_ARRAY_TASK_ID"):
            job = self.member(environment["SLURM_ARRAY_JOB_ID"], int(environment["SLURM_ARRAY_TASK_ID"]))
        return CurrentJob(job, int(environment.get("SLURM_RESTART_COUNT") or 0))

    def files(self, spec: JobSpec, plan: Plan, command: Command) -> list[File]:
        batch_script.check_options(spec, plan.run_dir)
        return batch_script.job_files(spec.launch, plan.hosts, plan.run_dir, command, plan.submit_dir)

    def submit(self, run_dir: Path, secrets: Mapping[str, str] | None = None, /) -> str:
        return _submit(run_dir / batch_script.JOB, secrets or {})

    def submit_array(
        self,
        folder: Path,
        members: Mapping[int, Path],
        at_once: int | None,
        secrets: Mapping[str, str] | None = None,
        /,
    ) -> str:
        scripts = {index: run / batch_script.JOB for index, run in members.items()}
        texts = [script.read_text(errors="surrogateescape") for script in scripts.values()]
        script = folder / batch_script.ARRAY
        content = batch_script.array_script(str(folder), scripts, texts, at_once)
        script.write_text(content, errors="surrogateescape")
        script.chmod(0o700)
        return _submit(script, secrets or {})

    def member(self, job: str, index: int) -> str:
        return f"{job.partition('_')[0]}_{index}"

    def _own_jobs(self, since: float = _LOOK_EVERY) -> dict[str, JobState] | None:
        """Every job of this user; None where Slurm does not answer, and then it is not asked again for a while."""
        age = math.inf if self._asked_at is None else time.monotonic() - self._asked_at
        if age > (since if self._jobs is not None else _SILENT_FOR):
            self._jobs, self._asked_at = _squeue(_OWN_JOBS), time.monotonic()
        return self._jobs

    def state(self, job: str, since: float | None = None) -> JobState | None:
        """Ask squeue for jobs that are there, and sacct for those that were, if there is accounting.

        None where Slurm cannot be asked; a job that it no longer knows is UNKNOWN.
        """
        jobs = self._own_jobs(_LOOK_EVERY if since is None else since)
        if jobs is None:
            return None
        array = job.partition("_")[0]  # members that were cancelled before they started go by the array's id
        state = jobs.get(job) or jobs.get(array) or (_squeue(f"--jobs={job}") or {}).get(job)
        return state or _sacct(job)

    def is_queued(self, job: str) -> bool:
        state = (self._own_jobs() or {}).get(job)
        return state is not None and state.state == "queued"

    def find(self, run_id: str) -> str | None:
        """Find this user's newest job of the run's name."""
        jobs = _squeue(_OWN_JOBS, f"--name={run_id}") or {}
        return max(jobs, key=_number, default=None)

    def cancel(self, job: str) -> None:
        """Signal the launcher, which stops its ranks in order; take a job that waits off the queue."""
        self._asked_at = None
        state = self.state(job)
        if state is None or state.word == "PENDING":
            done = _try("scancel", job)
        else:
            done = _try("scancel", "--batch", "--signal=TERM", job)
        if done is None:
            raise missing("scancel")
        if done.returncode != 0:
            raise NotReadyError(f"scancel {job}: {_one_line(done.stderr)}")

    def cancel_array(self, job: str) -> None:
        """Take members that wait off the queue, and signal the launchers of the others."""
        self._asked_at = None
        for options in (("--state=PENDING",), ("--batch", "--signal=TERM")):
            if _try("scancel", "--quiet", *options, job) is None:
                raise missing("scancel")

    def kill(self, job: str) -> None:
        _try("scancel", job)

    def show_command(self, job: str, ended: bool = False) -> str:
        return shlex.join(("sacct" if ended else "squeue", "-j", job))


def _submit(script: Path, secrets: Mapping[str, str]) -> str:
    """Hand a script to sbatch; return the job's id. Secrets go with the environment, which Slurm gives to the job.

    Its options are given once more: SBATCH_* variables override what stands in a script, and not what is typed.
    """
    head = takewhile(lambda line: line.startswith("#"), script.read_text(errors="surrogateescape").splitlines())
    options = [word for line in head if line.startswith("#SBATCH ") for word in shlex.split(line[8:])]
    # No limit: whoever gave up could not tell whether the job is in the queue. Ctrl-C waits for the answer too.
    env = {**os.environ, **{f"{RANKS_ONLY}{name}": value for name, value in secrets.items()}}
    answer = ask("sbatch", "--parsable", *options, str(script), seconds=None, env=env).strip()
    job = answer.split(";")[0]
    if not job.isdigit():
        raise NotReadyError(f"sbatch gave no job id, but {answer!r}. Leave out the option that makes it do so.")
    return job


def _number(job: str) -> int:
    """The number of a job: of 12_3, a member of an array, and of 12+3, a part of a heterogeneous job, that is 12."""
    match = re.match(r"\d{1,18}", job)
    return int(match[0]) if match else 0


def _squeue(*options: str) -> dict[str, JobState] | None:
    done = _try("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%e|%r", *options)
    if done is None or (done.returncode != 0 and "Invalid job id" not in done.stderr):
        return None
    rows = (line.split("|", 3) for line in done.stdout.splitlines() if line.count("|") >= 3)
    return {job: _job_state(state, reason, ended) for job, state, ended, reason in rows}


def _sacct(job: str) -> JobState:
    done = _try("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,End")
    state = ended = ""
    if done is not None and done.returncode == 0 and done.stdout.strip():
        state, _, ended = done.stdout.strip().splitlines()[0].partition("|")
    return _job_state(state.split()[0] if state else "UNKNOWN", "", ended)


def _job_state(word: str, reason: str, ended: str) -> JobState:
    """Turn what squeue or sacct says of a job into a run's state; a job that Slurm does not know is lost."""
    reason = "" if reason == "None" else reason
    time_of_end = None
    with suppress(ValueError, OverflowError):  # Slurm writes N/A or Unknown for what has not ended
        time_of_end = datetime.fromisoformat(ended).astimezone().isoformat(timespec="milliseconds")
    return JobState(STATES.get(word, "lost"), word, reason, time_of_end, word == "COMPLETING")


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
