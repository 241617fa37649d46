"""Files that are read twice, headers first and values later: both times they must be the same."""

from __future__ import annotations

import os
from pathlib import Path, PosixPath

from mslaunch.errors import NotReadyError, ShardUnreadable, limit_of

Version = tuple[int, int, int, int]
"""Device, inode, size and time of the last change."""


class SourcePath(PosixPath):
    """A path, and which file it named when its headers were read."""

    version: Version | None = None


class SourceChanged(NotReadyError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} changed while it was read; nothing was written. Run it again.")


def remember(path: Path, found: os.stat_result) -> SourcePath:
    """The path with the version of the file that was opened there."""
    made = SourcePath(path)
    made.version = _version(found)
    return made


def open_source(path: Path) -> int:
    """Open a file whose headers have been read; refuse another one that has its name now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if limit_of(error) is not None:
            raise
        raise ShardUnreadable(str(path), error.strerror or str(error)) from None
    try:
        check_unchanged(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_unchanged(fd: int, path: Path) -> None:
    """Compare an open file with what it was when its headers were read."""
    known = path.version if isinstance(path, SourcePath) else None
    if known is not None and _version(os.fstat(fd)) != known:
        raise SourceChanged(path)


def _version(found: os.stat_result) -> Version:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
