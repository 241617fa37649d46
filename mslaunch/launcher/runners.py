"""The fifth stage: a job runs in this process, in a thread of it, or in a queue."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, limit_of
from mslaunch.launcher.attempt.journal import Observer
from mslaunch.launcher.execute import execute
from mslaunch.launcher.folder import create_queued
from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.run import record
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import write_atomically
from mslaunch.signals import SignalSource
from mslaunch.transports.base import JobQueue

if TYPE_CHECKING:
    from mslaunch.run.run import Run


def run_here(launch: Launch, observe: Observer, signals: SignalSource | None = None) -> record.RunRecord:
    """Run a job to its end in this process; without `signals`, those of the process stop it."""
    hooks = launch.site.hooks
    try:
        cluster = launch.site.open()
    except Exception as error:
        failed = record_failure(launch.folder, error)
        if failed is not None and hooks:
            from mslaunch.launcher.hooks import run_hooks

            run_hooks(hooks, launch.folder, failed, launch.environment, signals)
        raise
    try:
        return execute(launch, cluster, observe, signals)
    except Exception as error:
        record_failure(launch.folder, error)
        raise


def record_failure(folder: RunFolder, error: BaseException) -> record.RunRecord | None:
    """Record that the launcher itself failed, unless it has recorded how the run ended; None where that fails too."""
    error = limit_of(error) or error
    exit_code = error.exit_code if isinstance(error, MslaunchError) else 1
    verdict = Verdict(exit_code=exit_code, cause="launcher", summary=f"{type(error).__name__}: {error}")
    with suppress(OSError, MslaunchError):
        now = record.read(folder)
        if now.state not in record.ENDED:
            now = now.end("failed", record.iso(time.time()), exit_code, verdict)
            record.save(folder, now)
        return now
    return None


def submit(planned: PlannedJob, queue: JobQueue) -> tuple[Run, str]:
    """Make the run's folder and submit it; return the run and the queue's job."""
    from mslaunch.run.run import Run

    plan, secrets = planned.plan, planned.site.secrets
    folder = create_queued(planned)
    try:
        job = queue.submit(folder.path, secrets) if secrets else queue.submit(folder.path)
    except (MslaunchError, OSError):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    with suppress(OSError):  # a full disk: the job is found by the run's name
        write_atomically(folder.job(plan.transport), job)
    return Run(folder), job
