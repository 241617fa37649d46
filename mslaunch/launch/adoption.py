"""A run that Slurm starts: its folder was made when it was submitted, or by the attempt that Slurm has cut short."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.errors import MslaunchError, RecordUnreadable
from mslaunch.launch import record
from mslaunch.launch.attempts import find_resume, summary
from mslaunch.launch.run_folder import RunFolder, write_atomically, write_files
from mslaunch.plan.attempt import resuming
from mslaunch.plan.model import Plan, from_json, to_json


@dataclass(frozen=True, slots=True)
class Adopted:
    """A folder that is there already, and what is known of earlier attempts."""

    folder: RunFolder
    job: str
    before: Plan | None = None
    """What the attempt before was, if there was one."""
    found: Mapping[int, str] = field(default_factory=dict)
    """The checkpoint that each rank resumes from."""
    attempts: tuple[dict[str, Any], ...] = ()

    @property
    def attempt(self) -> int:
        return self.before.attempt + 1 if self.before else 0

    def resume(self, plan: Plan) -> Plan:
        """Tell the ranks what they resume from."""
        if self.before is None:
            return plan
        source = f"resuming from {Path(self.found[0]).name}" if self.found else "from the start"
        note = f"Slurm has queued the job again: attempt {self.attempt + 1}, {source}"
        return resuming(replace(plan, notes=(*plan.notes, note)), self.found)

    def take(self, plan: Plan) -> RunFolder:
        """Write the plan, now that the hosts are known; the code is as it was when the job was submitted."""
        if self.before is not None:
            self.folder.plan.rename(self.folder.earlier_plan(self.before.attempt))
        write_files(self.folder.path, plan.files)
        write_atomically(self.folder.plan, to_json(plan))
        write_atomically(self.folder.slurm_job, self.job)
        return self.folder

    def refuse(self, error: MslaunchError) -> None:
        """Keep on record why the run could not begin: nobody is there to read it from the screen."""
        verdict = record.bare_verdict("not ready", str(error), "", error.exit_code)
        ended = record.iso(time.time())
        failed = replace(record.read(self.folder), state="failed", ended=ended, exit_code=error.exit_code)
        record.save(self.folder, replace(failed, verdict=verdict))


def adopt(folder: RunFolder, environment: Mapping[str, str]) -> Adopted | None:
    """Find the run that this Slurm job was submitted for, or has run before it was queued again."""
    job = environment.get("SLURM_JOB_ID")
    try:
        now = record.read(folder)
    except RecordUnreadable:
        return None
    if job is None or now.transport != "slurm" or record.slurm_job(folder) not in (None, job):
        return None
    if now.state == "queued":
        return Adopted(folder, job)
    if int(environment.get("SLURM_RESTART_COUNT") or 0) == 0:
        return None
    before = from_json(folder.plan.read_text())
    found = find_resume(before, folder, {host.name for host in before.hosts})
    return Adopted(folder, job, before, found, (*now.attempts, summary(before, now, found)))
