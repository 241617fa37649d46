"""Whether a failed or interrupted job goes on, and from what: a fresh port, and the newest checkpoint of all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from mslaunch.checkpoint.sharding.resuming import Resume, find_for_ranks
from mslaunch.checkpoint.sharding.saved_files import files_of_ranks, step_of
from mslaunch.diagnose.case import read_error
from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, RecordUnreadable, RequestError
from mslaunch.hosts import Host
from mslaunch.launcher.folder import write_next_plan
from mslaunch.plan.model import Plan
from mslaunch.plan.next_attempt import (
    STOPPED,
    AttemptEnding,
    hosts_left,
    next_attempt,
    pause,
    progressed,
    refusal,
    resuming,
    spent,
)
from mslaunch.run import launchers, record
from mslaunch.run.liveness import job_of
from mslaunch.run.ownership import check_owner
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import AttemptSummary, RunRecord
from mslaunch.run.writing import write_atomically
from mslaunch.shared import layout
from mslaunch.text import counted
from mslaunch.transports.base import Transport


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """The next attempt, and what is said about it."""

    plan: Plan
    pause: float
    note: str
    summary: AttemptSummary


Replan = Callable[[tuple[Host, ...], int, int], Plan]
"""Plans the job for other hosts: with these, as this attempt, with this port."""


@dataclass(frozen=True, slots=True)
class RestartTools:
    """What a further attempt needs besides the plan: a free port on a host, and a plan for fewer hosts."""

    free_port: Callable[[str], int]
    replan: Replan | None = None
    replace_hosts: Callable[[set[str]], Plan | str] | None = None
    """Plans the next attempt with hosts in place of those that are lost, or says why it cannot."""


def prepare_next(
    plan: Plan, ended: RunRecord, folder: RunFolder, lost: set[str], tools: RestartTools
) -> NextAttempt | str:
    """Prepare the next attempt, or say why there is to be none; an empty text where nobody would expect one."""
    if ended.state != "failed" or ended.verdict is None or plan.restarts.limit == 0:
        return ""
    hosts = hosts_left(plan, lost)
    resume = find_resume(plan, folder)
    endings = [_ending(attempt) for attempt in (*ended.attempts, summary(plan, ended, resume.files))]
    if ended.verdict.rank is not None and (error := read_error(folder.rank(ended.verdict.rank))):
        endings[-1] = replace(endings[-1], error_type=error.get("type"))
    why = refusal(plan.restarts, endings, tools.replace_hosts is not None)
    if why is not None:
        return why
    again: Plan | str = "the hosts that are left have too few ranks"
    if lost and tools.replace_hosts is not None:
        again = tools.replace_hosts(lost)
    elif lost and hosts and tools.replan is not None:
        again = tools.replan(hosts, plan.attempt + 1, tools.free_port(hosts[0].name))
    elif hosts and not lost:
        again = next_attempt(plan, tools.free_port(hosts[0].name))
    if isinstance(again, str):
        return again
    try:
        resume = resume.for_world(again.world_size)
        again = resuming(again, resume.files)
        files = again.files
        if not lost:
            files = tuple(file for file in files if file.path == layout.RANKS)
        write_next_plan(folder, again, files, plan.attempt)
    except RequestError as error:
        return str(error)
    except OSError as error:
        return f"the plan could not be written ({error.strerror})"  # the verdict stands
    wait = pause(plan.restarts, endings)
    return NextAttempt(again, wait, _note(again, endings, wait, resume, lost), summary(plan, ended, resume.files))


def _ending(attempt: AttemptSummary) -> AttemptEnding:
    verdict, saved = attempt.verdict, _saved(attempt.resume or {})
    if verdict is None:
        return AttemptEnding(STOPPED, attempt.exit_code or 0, saved=saved)
    words = verdict.summary if verdict.cause == "exception" else None
    return AttemptEnding(verdict.cause, verdict.exit_code or 0, words, None, verdict.step, saved)


def _saved(files: Mapping[int, str]) -> tuple[int, int] | None:
    """The epoch and step of the checkpoint that an attempt resumes from."""
    return step_of(Path(next(iter(files.values())))) if files else None


def _note(again: Plan, endings: Sequence[AttemptEnding], wait: float, resume: Resume, lost: set[str]) -> str:
    gone = sorted(lost - {host.name for host in again.hosts})
    fewer = f" with {counted(again.world_size, 'rank')}, without {', '.join(gone)}" if gone else ""
    fewer = fewer or (f" with {', '.join(sorted(lost))} again" if lost else "")
    most = again.attempt + 1 + again.restarts.limit - spent(endings)
    progress = "; there was progress, so no restart is used up" if progressed(endings)[-1] else ""
    return f"attempt {again.attempt + 1} of {most}{fewer} in {wait:g} s, {resume.words}{progress}"


def summary(plan: Plan, ended: RunRecord, files: Mapping[int, str]) -> AttemptSummary:
    return AttemptSummary(plan.attempt, ended.ended, ended.exit_code, ended.verdict, dict(files) or None, plan.group)


def find_resume(plan: Plan, folder: RunFolder) -> Resume:
    """Find the newest checkpoint of this job that is complete on all ranks."""
    checkpoints = plan.restarts.checkpoints
    if checkpoints is None:
        return Resume()
    plans = (*(folder.earlier_plan(attempt) for attempt in range(plan.attempt)), folder.plan_of(plan.group))
    try:
        starts = sorted(path.stat().st_mtime for path in plans)
    except OSError as error:
        return Resume(words=f"from the start: it is not known when the job began ({error.strerror})")
    folders = _checkpoint_folders(plan, folder, checkpoints)
    return find_for_ranks(folders, checkpoints, plan.restarts.checkpoint_prefix, starts)


def _checkpoint_folders(plan: Plan, folder: RunFolder, checkpoints: str) -> dict[int, Path]:
    """Where each rank has its checkpoints: in its working folder, beside the script, or where the job was submitted."""
    roots: dict[int, tuple[Path, ...]] = {}
    for worker in plan.workers:
        rank = int(worker.rank or 0)
        roots[rank] = (folder.work(rank) / plan.workdir, folder.code / plan.workdir, Path(worker.cwd))
    places = [
        {rank: paths[number] / checkpoints.replace("{rank}", str(rank)) for rank, paths in roots.items()}
        for number in range(3)
    ]
    return next((folders for folders in places if files_of_ranks(folders)), places[0])


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """A folder that is there already, and what is known of earlier attempts."""

    folder: RunFolder
    job: str
    why: str
    """What has started it again, as the beginning of a sentence."""
    before: Plan | None = None
    """What the attempt before was, if there was one."""
    checkpoint: Resume = field(default_factory=Resume)
    """What the ranks resume from."""
    attempts: tuple[record.AttemptSummary, ...] = ()

    @property
    def attempt(self) -> int:
        return self.before.attempt + 1 if self.before else 0

    def resume(self, plan: Plan) -> Plan:
        """Tell the ranks what they resume from."""
        if self.before is None:
            return plan
        checkpoint = self.checkpoint.for_world(plan.world_size)
        note = f"{self.why}: attempt {self.attempt + 1}, {checkpoint.words}"
        return resuming(replace(plan, notes=(*plan.notes, note)), checkpoint.files)

    def write_plan(self, plan: Plan) -> RunFolder:
        """Write the plan, now that the hosts are known; the code is as it was when the job was submitted."""
        write_next_plan(self.folder, plan, plan.files, None if self.before is None else self.before.attempt)
        if self.job:
            write_atomically(self.folder.job(plan.transport), self.job)
        return self.folder

    def refuse(self, error: MslaunchError) -> record.RunRecord:
        """Keep on record why the run could not begin: nobody is there to read it from the screen."""
        verdict = Verdict(exit_code=error.exit_code, cause="not ready", summary=str(error))
        failed = record.read(self.folder).end("failed", record.iso(time.time()), error.exit_code, verdict)
        with suppress(OSError):  # a full disk: launcher.log may still tell
            record.save(self.folder, failed)
        return failed


def find_run(folder: RunFolder, transport: Transport, environment: Mapping[str, str]) -> ResumedRun | None:
    """Find the run that this queue's job was submitted for, or has run before it was queued again."""
    job = transport.queue.current_job(environment) if transport.queue else None
    if job is None:
        return _find_lost(folder, transport) if transport.resumes_runs else None
    try:
        now = record.read(folder)
    except RecordUnreadable:
        return None
    if now.transport != transport.name or job_of(folder, now) not in (None, job.job_id):
        return None
    check_owner(folder, "resume")
    if now.state == "queued":
        return ResumedRun(folder, job.job_id, "")
    if job.restarts == 0:
        return None
    return _resumed(folder, now, job.job_id, f"{transport.label} has queued the job again")


def _resumed(folder: RunFolder, now: record.RunRecord, job: str, why: str) -> ResumedRun:
    before = record.read_plan(folder)
    checkpoint = find_resume(before, folder)
    attempts = (*now.attempts, summary(before, now, checkpoint.files))
    return ResumedRun(folder, job, why, before, checkpoint, attempts)


def _find_lost(folder: RunFolder, transport: Transport) -> ResumedRun | None:
    """Find the run of this name whose launcher was lost before it could say how the run ended."""
    try:
        now = record.read(folder)
    except RecordUnreadable:
        return None
    launcher = now.launcher
    is_alive = launcher is not None and launchers.is_here(launcher) and launchers.is_alive(launcher)
    if now.transport != transport.name or now.state in record.ENDED or is_alive:
        return None
    check_owner(folder, "resume")
    return _resumed(folder, now, "", "the launcher was lost and is started again")
