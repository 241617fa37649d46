"""Runs of the past for tests: folders as jobs leave them, without the time that jobs take."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from mslaunch.documents.schema import RunStatus
from mslaunch.metrics.rows import Row, Source
from mslaunch.run import record
from mslaunch.run.launchers import this_process
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RankRecord, RunRecord
from mslaunch.shared import layout

DAY = 86400.0


def make_run(
    runs_dir: Path,
    name: str,
    state: RunStatus = "succeeded",
    days: float = 1.0,
    ranks: int = 2,
    bytes: int | None = None,
) -> RunFolder:
    """Make the folder of a run that ended so many days ago."""
    folder = RunFolder(runs_dir / name)
    folder.path.mkdir(parents=True)
    ended = time.time() - days * DAY
    rows = tuple(RankRecord(rank, "localhost", rank) for rank in range(ranks))
    code = {"succeeded": 0, "failed": 1}.get(state)
    started, over = record.iso(ended - 60), record.iso(ended) if state in record.ENDED else None
    made = RunRecord(
        name, state, started, over, this_process(), ranks, "dynamic", "local", "train.py", rows, exit_code=code
    )
    record.save(folder, RunRecord(**{**{name: getattr(made, name) for name in made.__slots__}, "bytes": bytes}))
    folder.plan.write_text("{}")
    os.utime(folder.plan, (ended, ended))
    for rank in range(ranks):
        folder.rank(rank).mkdir()
        folder.log(rank).write_text("x" * 5000)
    return folder


def write_plan(folder: RunFolder, text: str) -> None:
    """Write what a run was planned to do, as old as it was."""
    old = folder.plan.stat().st_mtime
    folder.plan.write_text(text)
    os.utime(folder.plan, (old, old))


def make_sweep(runs_dir: Path, name: str, *runs: str, **how: float) -> None:
    """Make the folder of a sweep with its runs."""
    (runs_dir / name).mkdir(parents=True)
    (runs_dir / name / layout.SWEEP).write_text("{}")
    for run in runs:
        make_run(runs_dir / name, run, **how)  # type: ignore[arg-type]


def make_running(runs: Path, name: str = "one") -> RunFolder:
    """Make the folder of a run of two ranks that goes on."""
    folder = make_run(runs, name, "running")
    found = record.read(folder)
    begun = tuple(replace(rank, started=found.started) for rank in found.ranks)
    record.save(folder, replace(found, ranks=begun))
    return folder


def tell_steps(folder: RunFolder, ago: float, pace: float = 0.5, ranks: int = 2) -> None:
    """Write ten steps of each rank, the last of which came so many seconds ago."""
    writer = MetricsWriter(folder.metrics)
    last = time.time() - ago
    for rank in range(ranks):
        values = ((step, {"step": step, "loss": 1 / step}) for step in range(1, 11))
        writer.write([Row(last - (10 - step) * pace, Source(0, rank), told) for step, told in values])
    writer.close()
