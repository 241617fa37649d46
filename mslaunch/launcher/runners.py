"""The fifth stage: a job runs in this process, a thread of it or a queue, or as a node of another launcher."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, limit_of, signal_code
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
    from mslaunch.run.record import RunRecord
    from mslaunch.run.run import Run
    from mslaunch.transports.join.node import Member


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


def agent_member(tell: Callable[[str], None], **flags: Any) -> Member:
    """A node that only lends its devices to the launcher at an address, from the settings that it was given."""
    from mslaunch.plan.methods import find_method
    from mslaunch.plan.spec import JobSpec
    from mslaunch.settings.resolve import resolve
    from mslaunch.settings.yaml_config import JobConfig
    from mslaunch.transports.join import lending_member

    given = {name: value for name, value in flags.items() if value is not None}
    settings = resolve(given, os.environ, JobConfig())
    return lending_member(
        JobSpec(settings.values, settings.sources, JobConfig(), find_method(settings)), os.environ, tell
    )


def join(member: Member, tell: Callable[[str], None], seconds: float | None) -> tuple[int, RunRecord | None, str]:
    """Take part in a job that another process launches; return the exit code, the run's record, or why there is none.

    `seconds` is how long the launcher is waited for; None is for ever.
    """
    from mslaunch.errors import RecordUnreadable
    from mslaunch.run.record import from_dict
    from mslaunch.signals import Signals
    from mslaunch.transports.join.node import Accepted, EarlyAgent, connect_unless_ended, take_part

    with Signals() as signals:
        early = EarlyAgent()
        try:
            accepted = connect_unless_ended(member, tell, seconds, signals)
        except BaseException:
            early.close()
            raise
        if not isinstance(accepted, Accepted):
            early.close()
            return signal_code(accepted), None, f"{accepted.name} ended this node before it joined {member.part.place}"
        tell(f"joined {member.part.place} as node {accepted.rank} ({accepted.name}), run {accepted.run}")
        ended = take_part(accepted, early, signals, tell)
    if ended.record is None:
        return ended.exit_code, None, ended.text
    try:
        return ended.exit_code, from_dict(ended.record, member.part.place), ended.text
    except RecordUnreadable as error:
        return ended.exit_code, None, str(error)
