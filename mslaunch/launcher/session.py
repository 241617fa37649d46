"""From a prepared job to a run: its folder is made, and the job is carried out here or handed to a queue."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mslaunch.errors import MslaunchError
from mslaunch.launcher.attempt import Observer, SignalSource
from mslaunch.launcher.cluster import connect_unchecked
from mslaunch.launcher.execute import execute
from mslaunch.launcher.prepare import Prepared
from mslaunch.store import record
from mslaunch.store.folder import create, write_atomically
from mslaunch.store.layout import RunFolder
from mslaunch.transports.base import Access, JobQueue

Fill = Callable[[Path], None]
"""Puts into a run's folder what the plan counts on."""


def make_folder(prepared: Prepared, fill: Fill | None = None) -> RunFolder:
    """Make the run's folder, or write into the one that it had when it was submitted; its record says queued."""
    plan = prepared.plan
    folder = prepared.resumed.write_plan(plan) if prepared.resumed else create(plan)
    try:
        if fill is not None:
            fill(folder.path)
    except BaseException:
        if not prepared.resumed:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    record.save(folder, record.queued(plan, time.time()))
    return folder


def carry_out(
    prepared: Prepared,
    folder: RunFolder,
    observe: Observer,
    environment: Mapping[str, str],
    signals: SignalSource | None = None,
) -> record.RunRecord:
    """Run the job to its end in this process; without `signals`, those of the process count."""
    plan = prepared.plan
    cluster = prepared.cluster or connect_unchecked(prepared.transport, plan.hosts, Access(sys.executable))
    attempts = prepared.resumed.attempts if prepared.resumed else ()
    return execute(plan, folder, observe, environment, cluster, prepared.replan, attempts, signals)


def submit(prepared: Prepared, queue: JobQueue) -> tuple[RunFolder, str]:
    """Make the run's folder and submit it; return the folder and the queue's job."""
    folder = create(prepared.plan)
    try:
        record.save(folder, record.queued(prepared.plan, time.time()))  # before: the job may start at once
        job = queue.submit(folder.path)
        write_atomically(folder.job(prepared.plan.transport), job)
    except (MslaunchError, OSError):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder, job
