"""Runs, past and present: finding them by name, asking how they stand, stopping them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mslaunch.agent.guard import end_run, processes_with
from mslaunch.errors import AmbiguousRun, NoSuchRun, NotReadyError, RequestError
from mslaunch.launch import identity, record, slurm_jobs
from mslaunch.launch.run_folder import RunFolder

LOST_PATIENCE = 5.0


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first."""
    if not runs_dir.is_dir():
        return []
    folders = [
        RunFolder(path) for path in runs_dir.iterdir() if not path.is_symlink() and (path / "run.json").is_file()
    ]
    return sorted(folders, key=lambda folder: (_made(folder), folder.run_id))


def _made(folder: RunFolder) -> int:
    plans = [path for path in (folder.earlier_plan(0), folder.plan) if path.exists()]
    return plans[0].stat().st_mtime_ns if plans else 0


def find_run(runs_dir: Path, name: str | None) -> RunFolder:
    """Find a run by its path, its name or an unambiguous beginning of it; the newest where none is named."""
    if name and (Path(name) / "run.json").is_file():
        return RunFolder(Path(name).resolve())
    if name and "/" in name:
        raise RequestError(f"{name}: neither a run nor a folder of logs. `mslaunch ps` lists the runs.")
    runs = list_runs(runs_dir)
    known = [run.run_id for run in runs]
    if not runs:
        raise NoSuchRun(name or "latest", str(runs_dir), known)
    if name in (None, "latest"):
        return runs[-1]
    matches = [run for run in runs if run.run_id.startswith(str(name))]
    exact = [run for run in matches if run.run_id == name]
    if not matches:
        raise NoSuchRun(str(name), str(runs_dir), known)
    if len(matches) > 1 and not exact:
        raise AmbiguousRun(str(name), [run.run_id for run in matches])
    return (exact or matches)[0]


def stop(folder: RunFolder, wait: float) -> record.RunRecord:
    """Ask a run's launcher to stop it, and wait until it has."""
    now = record.load(folder)
    if now.state not in record.ENDED and (job := record.slurm_job(folder)):
        return _stop_job(folder, job, wait)
    launcher = now.launcher
    if now.state not in record.ENDED and launcher is not None and not identity.is_here(launcher):
        raise NotReadyError(f"{folder.run_id} was launched on {launcher['host']}. Run `mslaunch stop` there.")
    asked = None
    for _ in _ticks(wait):
        now = record.load(folder)
        if now.state in record.ENDED:
            _end_what_is_left(folder)
            return now
        launcher = now.launcher
        if now.state == "running" and launcher and launcher["pid"] != asked:
            asked = launcher["pid"]
            with suppress(ProcessLookupError):
                os.kill(asked, signal.SIGTERM)
    assert launcher is not None
    raise NotReadyError(
        f"{folder.run_id} has not stopped after {wait:.0f} s. Its launcher is pid {launcher['pid']}; try again."
    )


def _stop_job(folder: RunFolder, job: str, wait: float) -> record.RunRecord:
    """Ask Slurm to end a run's job; one that does not end is ended the hard way."""
    slurm_jobs.cancel(job)
    for end in (slurm_jobs.kill, None):
        for _ in _ticks(wait):
            now = record.load(folder)
            if now.state in record.ENDED:
                return _stopped(folder, now)
        if end:
            end(job)
    raise NotReadyError(f"{folder.run_id} has not stopped after {2 * wait:.0f} s: see `squeue -j {job}`; try again.")


def _stopped(folder: RunFolder, now: record.RunRecord) -> record.RunRecord:
    """Keep how a job ended that was cancelled: Slurm forgets, and a launcher that had just begun could not say it."""
    if record.read(folder).state not in record.ENDED:
        ended = now.ended or record.iso(time.time())
        now = replace(now, state="stopped", ended=ended, exit_code=128 + signal.SIGTERM, verdict=None)
        record.save(folder, now)
    return now


def _end_what_is_left(folder: RunFolder) -> None:
    """The agent of a lost run ends its ranks by itself; should it not get to it, this does."""
    mark = f"MSLAUNCH_RUN_DIR={folder.path.resolve()}"
    for _ in _ticks(LOST_PATIENCE):
        if not processes_with(mark):
            return
    end_run(str(folder.path.resolve()))


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
