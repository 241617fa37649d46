"""A run's folder: the one place that knows what its files are called."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from mslaunch.errors import RunExists, RunsFolderUnwritable
from mslaunch.launch.bundle import BOOT, write_bundle
from mslaunch.launch.snapshot import mirror
from mslaunch.plan.model import File, Plan, to_json


@dataclass(frozen=True, slots=True)
class RunFolder:
    """<runs-dir>/<run-id>, complete in itself."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    def earlier_plan(self, attempt: int) -> Path:
        return self.path / f"plan.{attempt}.json"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def bundle(self) -> Path:
        return self.path / "mslaunch.zip"

    @property
    def boot(self) -> Path:
        return self.path / "mslaunch_rank.py"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def slurm_job(self) -> Path:
        """Holds the id of the Slurm job that a run belongs to."""
        return self.path / "slurm_job"

    @property
    def launcher_log(self) -> Path:
        return self.path / "launcher.log"

    @property
    def scheduler_log(self) -> Path:
        return self.path / "scheduler" / "log.txt"

    def rank(self, rank: int) -> Path:
        return self.path / f"rank_{rank}"

    def log(self, rank: int) -> Path:
        return self.rank(rank) / "log.txt"

    def error(self, rank: int) -> Path:
        return self.rank(rank) / "error.json"


def write_atomically(path: Path, content: str, mode: int = 0o600) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content.encode("utf-8", "surrogateescape"))  # arguments and paths need not be text
    beside.replace(path)


def create(plan: Plan) -> RunFolder:
    """Make the run's folder with everything that the plan wants in it, or leave nothing behind."""
    folder = RunFolder(Path(plan.run_dir))
    runs_dir = folder.path.parent
    made_runs_dir = not runs_dir.exists()
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        folder.path.mkdir(mode=0o700)
    except FileExistsError:
        if folder.path.is_dir():
            raise RunExists(plan.run_id, str(folder.path)) from None
        raise RunsFolderUnwritable(str(runs_dir), "it is not a folder") from None
    except OSError as error:
        raise RunsFolderUnwritable(str(runs_dir), _why(error)) from None
    try:
        fill(plan, folder)
        _point_latest(folder)
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if made_runs_dir:
            with contextlib.suppress(OSError):
                runs_dir.rmdir()
        if isinstance(error, OSError):
            raise RunsFolderUnwritable(str(folder.path), _why(error)) from None
        raise
    return folder


def fill(plan: Plan, folder: RunFolder) -> None:
    """Write the plan, its files, the code and the zip into an empty folder."""
    write_files(folder.path, plan.files)
    write_bundle(folder.bundle)  # first: it marks the folder as a run, which a mirror leaves out
    mirror(Path(plan.job_dir), folder.code, folder.path.parent.resolve())
    write_atomically(folder.boot, BOOT)
    write_atomically(folder.plan, to_json(plan))


def write_files(root: Path, files: tuple[File, ...]) -> None:
    for file in files:
        path = root / file.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, file.content, file.mode)


def _point_latest(folder: RunFolder) -> None:
    beside = folder.path.parent / f".latest.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.run_id)
    beside.replace(folder.path.parent / "latest")


def _why(error: OSError) -> str:
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
