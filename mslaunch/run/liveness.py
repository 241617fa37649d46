"""How a run really stands: its record, checked against the launcher's process or the queue that runs it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from mslaunch import plugins
from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import PluginBroken, RequestError, signal_code
from mslaunch.run import launchers
from mslaunch.run.ownership import is_own
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import ENDED, RunRecord, iso, read
from mslaunch.run.writing import write_atomically
from mslaunch.transports import registry
from mslaunch.transports.base import JobQueue

LOGS_LOOKED_AT = 16  # of a lost run: a list may have many of those, with thousands of ranks each


def current(folder: RunFolder, read: Callable[[RunFolder], RunRecord] = read) -> RunRecord:
    """Read a record; a run whose launcher is no longer there is lost, whatever the file still says."""
    record = read(folder)
    launcher = record.launcher
    job = job_of(folder, record)
    if record.state in ENDED and job is None:
        return record  # the transport is not asked, nor loaded: `mslaunch ps` may have a thousand of these
    queue = queue_of(record)
    if queue is not None and job is not None and record.state not in ENDED:
        queue.update(folder.path, job)
        record = read(folder)
    if record.state in ENDED:
        if queue is not None and job is not None and queue.is_queued(job):
            record = replace(record, state="queued", ended=None, exit_code=None)  # it waits for its next start
        return record
    alive = launcher is not None and launchers.is_here(launcher) and launchers.is_alive(launcher)
    if alive and (record.state == "running" or job is None):
        return record  # while it is queued, that is only whoever submitted it
    if queue is not None and job is None and record.state == "queued":
        if not is_own(folder):
            return record  # a job is found by its name, and the caller may have one of the same name
        job = _found_again(folder, record, queue)
    if queue is not None and job is not None:
        return _as_queue_sees(folder, record, queue, job)
    if launcher and launchers.is_here(launcher):
        record = record.end("lost", last_sign_of_life(folder, record))
    return record


def last_sign_of_life(folder: RunFolder, record: RunRecord) -> str:
    """Return when a run whose launcher is gone last wrote something: its record, its events, numbers or logs."""
    first_ranks = [rank.rank for rank in record.ranks[:LOGS_LOOKED_AT]]
    files = (folder.record, folder.events, folder.metrics, *map(folder.log, first_ranks))
    times = []
    for file in files:
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return iso(max(times)) if times else record.started


def queue_of(record: RunRecord) -> JobQueue | None:
    """Return the queue that a run's transport submits to; none where that transport is not installed here."""
    try:
        return registry.make(record.transport).queue
    except PluginBroken as error:
        plugins.warn(str(error))
    except RequestError:
        pass
    return None


def job_of(folder: RunFolder, record: RunRecord) -> str | None:
    """Return the id of the queue's job that a run belongs to, if it does."""
    with suppress(OSError):
        return folder.job(record.transport).read_text(errors="replace").strip() or None
    return None


def _found_again(folder: RunFolder, record: RunRecord, queue: JobQueue) -> str | None:
    """The job of a run whose submitter died before it could write the id down: it has the run's or sweep's name."""
    sweep = folder.sweep
    job = queue.find(sweep.sweep_id if sweep else folder.run_id)
    if sweep is not None and job is not None:
        from mslaunch.run.sweep_record import read as read_sweep

        run_ids = read_sweep(sweep).run_ids
        job = queue.member(job, run_ids.index(folder.run_id)) if folder.run_id in run_ids else None
    if job is not None:
        with suppress(OSError):
            write_atomically(folder.job(record.transport), job)
    return job


def _as_queue_sees(folder: RunFolder, record: RunRecord, queue: JobQueue, job: str) -> RunRecord:
    """How a run stands whose launcher is elsewhere, has not begun, or has gone without a word."""
    seen = queue.state(job)
    if seen is None:
        return record
    if seen.state in ("queued", "running"):
        waits = (f"{queue.label} job {job} waits: {seen.reason}",) if seen.state == "queued" and seen.reason else ()
        return replace(record, state=seen.state, notes=(*record.notes, *waits))
    record = read(folder)  # it may have said how it ended just now
    if record.state in ENDED:
        return record
    ended = seen.ended or last_sign_of_life(folder, record)
    if seen.state == "stopped":
        return record.end(seen.state, ended, signal_code(signal.SIGTERM))
    state = "lost" if seen.state == "succeeded" else seen.state
    verdict = Verdict(
        cause=record.transport,
        summary=f"{queue.label} job {job} has ended ({seen.word}), and its launcher has not said why.",
        advice=f"`{queue.show_command(job, ended=True)}` and launcher.log in the run's folder may tell more.",
    )
    return record.end(state, ended, verdict=verdict)
