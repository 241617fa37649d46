"""Writes the files of a plan in a hidden folder, and gives them their names only when all of them are there."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.checkpoint.moving.file_io import Differs, SameFile
from mslaunch.checkpoint.moving.shard_writer import Progress, ShardWriter
from mslaunch.documents.mounts import mount_points
from mslaunch.errors import NotReadyError, RequestError, limit_of

if TYPE_CHECKING:
    from mslaunch.checkpoint.sharding.reshard import ReshardPlan
    from mslaunch.checkpoint.sharding.verify import ShardFinding

LOCK = "lock"
NEW = "new"
"""What is inside: the lock, and the folder that the new files are written in."""
_PARTIAL = ".partial-"
_LONGEST = 200
"""Bytes of the target's name; file systems allow 255 in all."""
_OLD = 3600.0
"""Seconds without a change after which a folder whose lock tells nothing is taken for a dead process's."""


def is_free(folder: Path) -> bool:
    """Tell whether a folder is empty, files that are still being written aside."""
    return all(entry.name.startswith(_PARTIAL) for entry in folder.iterdir())


def _is_inside(target: Path) -> bool:
    """Tell whether an empty folder must stay: one that is mounted, or in a folder of others, cannot be replaced."""
    if not target.is_dir() or not os.access(target.parent, os.W_OK):
        return target.is_dir()
    places = mount_points()
    return os.path.ismount(target) if places is None else str(target) in places


@contextmanager
def _partial_folder(target: Path, inside: bool) -> Iterator[Path]:
    """A hidden folder beside the target, or in it, to write in; whatever happens, it is gone in the end."""
    parent, prefix = (target, _PARTIAL) if inside else (target.parent, f".{_short(target.name)}{_PARTIAL}")
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        if _is_dead(left):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
    partial = parent / f"{prefix}{os.urandom(8).hex()}"
    try:
        partial.mkdir(parents=True)
        # The lock gets its name when it is held, lest another process take the folder for a dead one's.
        before = partial / f"{LOCK}.begun"
        lock = os.open(before, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(lock, _boot())
            _lock(lock)
            before.rename(partial / LOCK)
            (partial / NEW).mkdir()
            yield partial / NEW
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _short(name: str) -> str:
    """Return the name; a long one is cut, and gets a digest of the rest."""
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST:
        return name
    import hashlib  # not for every start: it loads OpenSSL

    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return f"{encoded[: _LONGEST - 40].decode(errors='ignore')}-{digest}"


def _boot() -> bytes:
    """Which start of which machine this is; all its containers have the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b""


def _lock(fd: int) -> bool | None:
    """Take the lock; None where the file system has none, False where another has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _is_dead(partial: Path) -> bool:
    """By its lock; where another machine has made it, which may not see our locks, by its age as well."""
    try:
        fd = os.open(partial / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return _is_old(partial)
    except OSError:
        return False
    try:
        is_free, here = _lock(fd), _boot()
        if is_free is False:
            return False
        return (is_free is True and bool(here) and os.read(fd, 100) == here) or _is_old(partial)
    finally:
        os.close(fd)


def _is_old(partial: Path) -> bool:
    try:
        changed = max(path.lstat().st_mtime for path in (partial, *partial.rglob("*")))
    except OSError:
        return False  # it is changing just now
    return time.time() - changed > _OLD


@dataclass(frozen=True, slots=True)
class Planned:
    """A new set, ready to be written."""

    job: ReshardPlan
    names: Mapping[int, str]
    extra: Mapping[str, bytes]
    warnings: tuple[ShardFinding, ...]

    def write(self, folder: Path, progress: Progress = lambda _: None) -> None:
        """Write all files below a new folder; it gets its name only when all is there."""
        with _clear_errors(self.job, folder):
            target = Path(os.path.realpath(folder))
            inside = _is_inside(target)
            _check_room(self.job.nbytes, folder, target if inside else target.parent)
            with _partial_folder(target, inside) as made:
                ShardWriter(self.job, self._paths(made), progress).run()
                for name, content in self.extra.items():
                    (made / name).write_bytes(content)
                if inside:
                    _move_into(made, target)
                    return
                if target.is_dir():
                    target.rmdir()  # only ever an empty one
                made.rename(target)

    def is_in(self, folder: Path, progress: Progress = lambda _: None) -> bool:
        """Tell whether a folder holds this set already; every byte is compared."""
        try:
            if any((folder / name).read_bytes() != content for name, content in self.extra.items()):
                return False
            ShardWriter(self.job, self._paths(folder), progress, SameFile).run()
        except (Differs, OSError):
            return False
        return True

    def write_file(self, path: Path, progress: Progress = lambda _: None) -> None:
        """Write the only shard as this file."""
        with _clear_errors(self.job, path):
            target = Path(os.path.realpath(path))
            _check_room(self.job.nbytes, path, target.parent)
            with _partial_folder(target, inside=False) as made:
                file = made / f"file{target.suffix}"  # a long name could be too long in there
                ShardWriter(self.job, dict.fromkeys(self.job.shards, file), progress).run()
                _publish(file, target)

    def _paths(self, folder: Path) -> dict[int, Path]:
        return {rank: folder / name for rank, name in self.names.items()}


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
def _clear_errors(job: ReshardPlan, target: Path) -> Iterator[None]:
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
