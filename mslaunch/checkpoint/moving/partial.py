"""The hidden folder that new files are written in until all of them are there, and what killed processes left of such.

Its name is random: numbers of processes come again in every container. A lock on a file in it is the sign of life.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mslaunch.documents.mounts import mount_points

LOCK = "lock"
NEW = "new"
"""What is inside: the lock, and the folder that the new files are written in."""
_PARTIAL = ".partial-"
_LONGEST = 200
"""Bytes of the target's name; file systems allow 255 in all."""
_OLD = 3600.0
"""Seconds without a change after which a folder whose lock tells nothing is taken for a dead process's."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def is_free(folder: Path) -> bool:
    """Tell whether a folder is empty, but for what is being written there."""
    return all(entry.name.startswith(_PARTIAL) for entry in folder.iterdir())


def is_inside(target: Path) -> bool:
    """Tell whether an empty folder must stay: one that is mounted, or in a folder of others, cannot be replaced."""
    return target.is_dir() and (_is_mounted(target) or not os.access(target.parent, os.W_OK))


def _is_mounted(folder: Path) -> bool:
    places = mount_points()
    return os.path.ismount(folder) if places is None else str(folder) in places


@contextmanager
def partial_folder(target: Path, inside: bool) -> Iterator[Path]:
    """A hidden folder beside the target, or in it, to write in; whatever happens, it is gone in the end."""
    parent, prefix = (target, _PARTIAL) if inside else (target.parent, f".{_short(target.name)}{_PARTIAL}")
    sweep(parent, prefix)
    partial = parent / f"{prefix}{os.urandom(8).hex()}"
    try:
        partial.mkdir(parents=True)
        lock = _hold(partial)
        try:
            (partial / NEW).mkdir()
            yield partial / NEW
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _short(name: str) -> str:
    """The name itself; a long one is cut, and told from others that begin so by its digest."""
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST:
        return name
    import hashlib  # not for every start: it loads OpenSSL

    digest = hashlib.blake2b(encoded, digest_size=8).hexdigest()
    return f"{encoded[: _LONGEST - 40].decode(errors='ignore')}-{digest}"


def _hold(partial: Path) -> int:
    """Lock a file in the folder; it gets its name when it is locked, lest another take it for a dead process's."""
    before = partial / f"{LOCK}.begun"
    fd = os.open(before, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, _boot())
    _lock(fd)
    before.rename(partial / LOCK)
    return fd


def _boot() -> bytes:
    """Which start of which machine this is; all its containers have the same."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b""


def _lock(fd: int) -> bool | None:
    """Take the lock; None where the file system has none, False where another has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def sweep(parent: Path, prefix: str) -> None:
    """Remove what killed processes have left."""
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        if _is_dead(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_dead(partial: Path) -> bool:
    """By its lock; where another machine has made it, which may not see our locks, by its age as well."""
    try:
        fd = os.open(partial / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return _is_old(partial)
    except OSError:
        return False
    try:
        taken, here = _lock(fd), _boot()
        if taken is False:
            return False
        return (taken is True and bool(here) and os.read(fd, 100) == here) or _is_old(partial)
    finally:
        os.close(fd)


def _is_old(partial: Path) -> bool:
    try:
        changed = max(path.lstat().st_mtime for path in (partial, *partial.rglob("*")))
    except OSError:
        return False  # it is changing just now
    return time.time() - changed > _OLD
