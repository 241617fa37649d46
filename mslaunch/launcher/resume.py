"""A run whose folder is there already: a queue starts it, now or anew, or its launcher was lost and comes back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mslaunch.checkpoint.sharding.resuming import Resume
from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, RecordUnreadable
from mslaunch.launcher.folder import write_next_plan
from mslaunch.launcher.restarts import find_resume, summary
from mslaunch.plan.model import Plan
from mslaunch.plan.next_attempt import resuming
from mslaunch.run import launchers, record
from mslaunch.run.liveness import job_of
from mslaunch.run.ownership import check_owner
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import write_atomically
from mslaunch.transports.base import Transport


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
