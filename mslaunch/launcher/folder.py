"""The fourth stage: everything that is written before a job starts, in the run's folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch import plugins
from mslaunch.errors import RunsFolderUnwritable
from mslaunch.launcher.snapshot import mirror
from mslaunch.plan.model import File, Plan, to_json
from mslaunch.run import find, record, writing
from mslaunch.run.paths import RunFolder, runs_root
from mslaunch.run.writing import keep_as, remove, why, write_atomically, write_beside
from mslaunch.transports.code_bundle import BOOT, write_bundle

if TYPE_CHECKING:
    from mslaunch.launcher.pipeline import PlannedJob, Runner

RESERVED = 256 << 10  # bytes for the last record of a run
RESERVED_PER_RANK = 1 << 10
NAMED = 4  # entries that are named where several could not be read


def create_folder(planned: PlannedJob, runner: Runner) -> RunFolder:
    """Make the run's folder, or write into the one that it had when it was submitted; its record says queued."""
    plan, resumed = planned.plan, planned.site.resumed
    if resumed:
        with _writing(resumed.folder, is_new=False):
            folder = resumed.write_plan(plan)
            record.save(folder, record.queued(plan, time.time()))
        return folder
    folder = create_labelled(plan)
    with _writing(folder):
        if planned.reshard is not None:
            from mslaunch.launcher.inference import place_set

            with runner.moving() as moving:
                place_set(planned.reshard, folder.path, moving, runner.say)
        record.save(folder, record.queued(plan, time.time()))
    return folder


def create_queued(planned: PlannedJob) -> RunFolder:
    """Make the folder of a run that a queue starts: its record is there before, since the job may start at once."""
    folder = create_labelled(planned.plan)
    with _writing(folder):
        record.save(folder, record.queued(planned.plan, time.time()))
    return folder


def create_labelled(plan: Plan) -> RunFolder:
    """Make a new run's folder with everything that its plan names, and its tags, or leave nothing behind."""
    folder = RunFolder(Path(plan.run_dir))
    writing.make_whole(folder.path, partial(fill, plan, folder))
    find.remember(runs_root(folder.path.parent.resolve()))
    if plan.tags:
        from mslaunch.run import labels

        with _writing(folder):
            labels.save(folder, labels.Labels(plan.tags))
    return folder


@contextlib.contextmanager
def _writing(folder: RunFolder, is_new: bool = True) -> Iterator[None]:
    """Name the folder that cannot be written; a new one that is not complete is removed."""
    try:
        yield
    except BaseException as error:
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise RunsFolderUnwritable(str(folder.path), why(error)) from None
        raise


def fill(plan: Plan, folder: RunFolder) -> None:
    """Write the plan, its files, the code and the zip into an empty folder."""
    write_files(folder.path, plan.files)
    write_bundle(folder.bundle)  # first: it marks the folder as a run, which a mirror leaves out
    runs_dir = runs_root(folder.path.parent.resolve())
    snapshot = mirror(Path(plan.job_dir), folder.code, runs_dir, Path(plan.sources_dir), plan.shared)
    write_atomically(folder.snapshot, snapshot.to_json())
    if skipped := snapshot.unread:
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        plugins.warn(f"left out of the run's code, since they cannot be read: {', '.join(skipped[:NAMED])}{more}")
    write_atomically(folder.boot, BOOT)
    write_atomically(folder.plan, to_json(plan))
    _reserve(folder.reserve, RESERVED + plan.world_size * RESERVED_PER_RANK)


def _reserve(path: Path, size: int) -> None:
    """Take room on the disk, so that a job which fills it can still be recorded; where there is none, none is taken."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            path.unlink()
        finally:
            os.close(file)


def write_files(root: Path, files: tuple[File, ...]) -> None:
    for file in files:
        path = root / file.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, file.content, file.mode)


def write_next_plan(folder: RunFolder, plan: Plan, files: tuple[File, ...], before: int | None) -> None:
    """Write the plan of another attempt and its files; the plan of the attempt before is kept beside it.

    All of it is written before anything is replaced, so a full disk leaves the plan and the files that were there.
    """
    written: dict[Path, Path] = {}
    try:
        for file in files:
            path = folder.path / file.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written[path] = write_beside(path, file.content, file.mode)
        written[folder.plan] = write_beside(folder.plan, to_json(plan))
        if before is not None:
            keep_as(folder.plan, folder.earlier_plan(before))
        for path, beside in written.items():
            beside.replace(path)
    except OSError:
        remove(*written.values())
        raise
