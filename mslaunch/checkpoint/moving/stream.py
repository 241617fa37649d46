"""Writes the files of a plan in a hidden folder, and gives them their names only when all of them are there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mslaunch.checkpoint.moving.file_io import Differs, SameFile
from mslaunch.checkpoint.moving.partial import is_free, is_inside, partial_folder
from mslaunch.checkpoint.moving.writer import Progress, Writer
from mslaunch.checkpoint.sharding.reshard import ReshardPlan
from mslaunch.errors import NotReadyError, RequestError, limit_of

__all__ = ["Progress", "holds_same", "write_file", "write_shards"]


def write_shards(
    job: ReshardPlan,
    names: Mapping[int, str],
    folder: Path,
    extra: Mapping[str, bytes] | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Write the job's shards as folder/names[rank], and `extra` beside them; renamed only when all is there."""
    with _told(job, folder):
        target = Path(os.path.realpath(folder))
        inside = is_inside(target)
        _check_room(job.nbytes, folder, target if inside else target.parent)
        with partial_folder(target, inside) as made:
            Writer(job, {rank: made / name for rank, name in names.items()}, progress).run()
            for name, content in (extra or {}).items():
                (made / name).write_bytes(content)
            if inside:
                _move_into(made, target)
                return
            if target.is_dir():
                target.rmdir()  # only ever an empty one
            made.rename(target)


def holds_same(
    job: ReshardPlan,
    names: Mapping[int, str],
    folder: Path,
    extra: Mapping[str, bytes] | None = None,
    progress: Progress = lambda _: None,
) -> bool:
    """Tell whether a folder's files hold, byte by byte, what `write_shards` would write there."""
    try:
        if any((folder / name).read_bytes() != content for name, content in (extra or {}).items()):
            return False
        Writer(job, {rank: folder / name for rank, name in names.items()}, progress, SameFile).run()
    except (Differs, OSError):
        return False
    return True


def write_file(job: ReshardPlan, path: Path, progress: Progress = lambda _: None) -> None:
    """Write a job of one shard to a file."""
    with _told(job, path):
        target = Path(os.path.realpath(path))
        _check_room(job.nbytes, path, target.parent)
        with partial_folder(target, inside=False) as made:
            file = made / f"file{target.suffix}"  # a long name could be too long in there
            Writer(job, dict.fromkeys(job.shards, file), progress).run()
            _publish(file, target)


def _move_into(made: Path, folder: Path) -> None:
    """Give the files of a set their places in a folder that cannot be replaced; of two at once, rank 0 decides."""
    if not is_free(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    moved: list[Path] = []
    try:
        for entry in sorted(made.iterdir()):
            entry.rename(folder / entry.name)
            moved.append(folder / entry.name)
    except BaseException:
        for path in moved:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


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
def _told(job: ReshardPlan, target: Path) -> Iterator[None]:
    """Turn errors of writing into sentences; those of sources name their files already."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotReadyError(
                f"{target}: the disk is full; nothing was kept. {job.nbytes / 1e6:,.0f} MB are needed: free some, "
                f"or write elsewhere."
            ) from None
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RequestError(f"{target}: is there already. Give another name, or remove it.") from None
        if (limit := limit_of(error)) is not None:
            raise limit from None
        raise NotReadyError(f"{target}: cannot be written: {error.strerror or error}. Write elsewhere.") from None


def _check_room(nbytes: int, target: Path, parent: Path) -> None:
    place = next(folder for folder in (parent, *parent.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise NotReadyError(
            f"{target}: {nbytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free there. "
            f"Free some, or write elsewhere."
        )
