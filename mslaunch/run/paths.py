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


def earlier_path(path: Path, attempt: int) -> Path:
    """Return where a file of an attempt is put before the next one."""
    return path.with_name(layout.earlier_name(path.name, attempt))


class FileInside:
    """The path of one file in a folder."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, folder: _Folder, _owner: type) -> Path:
        return folder.path.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class _Folder:
    """What the folders of runs and of sweeps have in common."""

    path: Path

    launcher_log = FileInside(layout.LAUNCHER_LOG)

    def job(self, transport: str) -> Path:
        """The file that holds the id of the job, where a queue runs it."""
        return self.path / f"{transport}_job"

    def request(self, kind: str) -> Path:
        """The file that asks a launcher inside another program for something: stop or stacks."""
        return self.path / f"{kind}.request"


@dataclass(frozen=True, slots=True)
class RunFolder(_Folder):
    """<runs-dir>/<run-id>, complete in itself."""

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
        return earlier_path(self.plan, attempt)

    def rank(self, rank: int) -> Path:
        return self.path / layout.rank_folder(rank)

    def work(self, rank: int) -> Path:
        """What a rank has written; while it runs, with links to the project beside it."""
        return self.path / layout.work_folder(rank)

    def log(self, rank: int) -> Path:
        return self.rank(rank) / layout.LOG

    def log_times(self, rank: int) -> Path:
        return self.rank(rank) / layout.TIMES


@dataclass(frozen=True, slots=True)
class SweepFolder(_Folder):
    """<runs-dir>/<sweep-id>, which holds the folders of its runs."""

    record = FileInside(layout.SWEEP)
    lock = FileInside(layout.SWEEP_LOCK)

    @property
    def sweep_id(self) -> str:
        return self.path.name

    def run(self, run_id: str) -> RunFolder:
        return RunFolder(self.path / run_id)


def runs_root(runs_dir: Path) -> Path:
    """The folder that holds all runs: for the runs of a sweep, the one above the sweep's."""
    return runs_dir.parent if is_file(SweepFolder(runs_dir).record) else runs_dir
