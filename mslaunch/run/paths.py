"""The folders of runs and sweeps as paths; mslaunch/shared/layout.py has the names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mslaunch.shared import layout


def is_file(path: Path) -> bool:
    """Tell whether a file is there and may be looked at; Path.is_file raises where a folder above it is closed."""
    try:
        return path.is_file()
    except OSError:
        return False


class FileInside:
    """The path of one file in a folder."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, folder: RunFolder | SweepFolder, _owner: type) -> Path:
        return folder.path.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """<runs-dir>/<run-id>, complete in itself."""

    path: Path

    plan = FileInside(layout.PLAN)
    record = FileInside(layout.RECORD)
    events = FileInside(layout.EVENTS)
    metrics = FileInside(layout.METRICS)
    labels = FileInside(layout.LABELS)
    report = FileInside(layout.REPORT)
    bundle = FileInside(layout.ZIP)
    reserve = FileInside(layout.RESERVE)
    boot = FileInside(layout.BOOT)
    code = FileInside(layout.CODE)
    snapshot = FileInside(layout.SNAPSHOT)
    launcher_log = FileInside(layout.LAUNCHER_LOG)
    scheduler_log = FileInside(layout.SCHEDULER, layout.LOG)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def sweep(self) -> SweepFolder | None:
        """The sweep that the run belongs to, if it does."""
        sweep = SweepFolder(self.path.parent)
        return sweep if is_file(sweep.record) else None

    @property
    def name(self) -> str:
        """What the run is called beside others: its id, after its sweep's where it belongs to one."""
        return f"{self.path.parent.name}/{self.run_id}" if self.sweep else self.run_id

    def plan_of(self, group: str) -> Path:
        """The plan of a group's present attempt; where a run has one group, that has no name and no folder."""
        return self.path / group / layout.PLAN

    def earlier_plan(self, attempt: int) -> Path:
        return self.path / layout.earlier_name(layout.PLAN, attempt)

    def job(self, transport: str) -> Path:
        """The file that holds the id of the job that a run belongs to, where a queue runs it."""
        return self.path / f"{transport}_job"

    def request(self, kind: str) -> Path:
        """The file that asks a launcher inside another program for something: stop or stacks."""
        return self.path / f"{kind}.request"

    def earlier_scheduler_log(self, attempt: int) -> Path:
        return self.scheduler_log.with_name(layout.earlier_name(layout.LOG, attempt))

    def rank(self, rank: int) -> Path:
        return self.path / layout.rank_folder(rank)

    def work(self, rank: int) -> Path:
        """What a rank has written; while it runs, with links to the project beside it."""
        return self.path / layout.work_folder(rank)

    def log(self, rank: int) -> Path:
        return self.rank(rank) / layout.LOG

    def log_times(self, rank: int) -> Path:
        return self.rank(rank) / layout.TIMES

    def earlier_log_times(self, rank: int, attempt: int) -> Path:
        return self.rank(rank) / layout.earlier_name(layout.TIMES, attempt)

    def earlier_log(self, rank: int, attempt: int) -> Path:
        """Where a rank's log is put before the next attempt."""
        return self.rank(rank) / layout.earlier_name(layout.LOG, attempt)


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """<runs-dir>/<sweep-id>, which holds the folders of its runs."""

    path: Path

    record = FileInside(layout.SWEEP)
    lock = FileInside(layout.SWEEP_LOCK)
    launcher_log = FileInside(layout.LAUNCHER_LOG)

    @property
    def sweep_id(self) -> str:
        return self.path.name

    def job(self, transport: str) -> Path:
        """The file that holds the id of the sweep's job, where a queue runs it."""
        return self.path / f"{transport}_job"

    def request(self, kind: str) -> Path:
        """The file by which a sweep inside another program is asked for something."""
        return self.path / f"{kind}.request"

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(self.path / run_id)


def runs_root(runs_dir: Path) -> Path:
    """The folder that holds all runs: for the runs of a sweep, the one above the sweep's."""
    return runs_dir.parent if is_file(SweepFolder(runs_dir).record) else runs_dir
