"""From a prepared job to a run: its folder is made, and the job is carried out here or handed to a queue."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, RunsFolderUnwritable, limit_of
from mslaunch.launch.attempt.attempt import Observer, SignalSource
from mslaunch.launch.cluster import connect_unchecked
from mslaunch.launch.execute import execute
from mslaunch.launch.folder import create
from mslaunch.launch.hooks import run_hooks
from mslaunch.launch.prepare import Prepared
from mslaunch.plan.model import Plan
from mslaunch.runs import labels, record
from mslaunch.runs.paths import RunFolder
from mslaunch.runs.writing import why, write_atomically
from mslaunch.transports.base import Access, JobQueue

Fill = Callable[[Path], None]
"""Puts into a run's folder what the plan counts on."""


def make_folder(prepared: Prepared, fill: Fill | None = None) -> RunFolder:
    """Make the run's folder, or write into the one that it had when it was submitted; its record says queued."""
    plan = prepared.plan
    if prepared.resumed:
        with _told(prepared.resumed.folder):
            folder = prepared.resumed.write_plan(plan)
            record.save(folder, record.queued(plan, time.time()))
        return folder
    folder = create_labelled(plan)
    try:
        with _told(folder):
            if fill is not None:
                fill(folder.path)
            record.save(folder, record.queued(plan, time.time()))
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def create_labelled(plan: Plan) -> RunFolder:
    """Make a new run's folder, with the tags that were asked for."""
    folder = create(plan)
    if plan.tags:
        try:
            with _told(folder):
                labels.save(folder, labels.Labels(plan.tags))
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
    return folder


@contextmanager
def _told(folder: RunFolder) -> Iterator[None]:
    """Say which folder it was that could not be written."""
    try:
        yield
    except OSError as error:
        raise RunsFolderUnwritable(str(folder.path), why(error)) from None


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


def carry_out(
    prepared: Prepared,
    folder: RunFolder,
    observe: Observer,
    environment: Mapping[str, str],
    signals: SignalSource | None = None,
) -> record.RunRecord:
    """Run the job to its end in this process; without `signals`, those of the process count."""
    plan, hooks = prepared.plan, prepared.hooks
    known = {**environment, **prepared.secrets}
    try:
        cluster = prepared.cluster or connect_unchecked(prepared.transport, plan.hosts, Access(sys.executable))
    except Exception as error:
        failed = record_failure(folder, error)
        if failed is not None and hooks:
            run_hooks(hooks, folder, failed, known, signals)
        raise
    attempts = prepared.resumed.attempts if prepared.resumed else ()
    return execute(plan, folder, observe, known, cluster, prepared.replan, attempts, signals, prepared.rejoin, hooks)


def submit(prepared: Prepared, queue: JobQueue) -> tuple[RunFolder, str]:
    """Make the run's folder and submit it; return the folder and the queue's job."""
    folder = create_labelled(prepared.plan)
    try:
        with _told(folder):
            record.save(folder, record.queued(prepared.plan, time.time()))  # before: the job may start at once
        job = queue.submit(folder.path, prepared.secrets) if prepared.secrets else queue.submit(folder.path)
    except (MslaunchError, OSError):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    with suppress(OSError):  # a full disk: the job is found by the run's name
        write_atomically(folder.job(prepared.plan.transport), job)
    return folder, job
