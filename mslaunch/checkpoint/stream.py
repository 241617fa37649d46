"""Writes the files of a plan beside their place, and renames them only when all of them are there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mslaunch.checkpoint.reshard import ReshardPlan
from mslaunch.checkpoint.writer import Progress, Writer
from mslaunch.errors import NotReadyError, RequestError

__all__ = ["Progress", "write_file", "write_shards"]


def write_shards(
    job: ReshardPlan,
    names: Mapping[int, str],
    folder: Path,
    extra: Mapping[str, bytes] | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Write the job's shards as folder/names[rank], and `extra` beside them; renamed only when all is there."""
    with _beside(job, folder) as beside:
        Writer(job, {rank: beside / name for rank, name in names.items()}, progress).run()
        for name, content in (extra or {}).items():
            (beside / name).write_bytes(content)
        if folder.is_dir():
            folder.rmdir()  # only ever an empty one
        beside.rename(folder)


def write_file(job: ReshardPlan, path: Path, progress: Progress = lambda _: None) -> None:
    """Write a job of one shard to a file."""
    with _beside(job, path) as beside:
        Writer(job, dict.fromkeys(job.shards, beside / path.name), progress).run()
        _publish(beside / path.name, path)


def _publish(made: Path, path: Path) -> None:
    """Give a file its name, unless another has got it meanwhile."""
    try:
        os.link(made, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        made.rename(path)


@contextmanager
def _beside(job: ReshardPlan, target: Path) -> Iterator[Path]:
    """A folder beside the target to write in; whatever happens, it is gone in the end."""
    _check_room(job.nbytes, target)
    _sweep(target)
    beside = target.with_name(f".{target.name}.partial-{os.getpid()}")
    ours = not beside.exists()  # asked before, since a signal may come just when it was made
    try:
        beside.mkdir(parents=True)
        yield beside
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotReadyError(
                f"{target}: the disk is full; nothing was kept. {job.nbytes / 1e6:,.0f} MB are needed: free some, "
                f"or write elsewhere."
            ) from None
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RequestError(f"{target}: is there already. Give another name, or remove it.") from None
        raise NotReadyError(f"{target}: cannot be written: {error.strerror or error}. Write elsewhere.") from None
    finally:
        if ours:
            shutil.rmtree(beside, ignore_errors=True)


def _check_room(nbytes: int, folder: Path) -> None:
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise NotReadyError(
            f"{folder}: {nbytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free there. "
            f"Free some, or write elsewhere."
        )


def _sweep(folder: Path) -> None:
    """Remove what a killed process has left beside."""
    for left in folder.parent.glob(f".{folder.name}.partial-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
