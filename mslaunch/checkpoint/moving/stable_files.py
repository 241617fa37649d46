"""Files that are read twice, headers first and values later: both times they must be the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PosixPath

from mslaunch.errors import NotReadyError, ShardUnreadable, limit_of


@dataclass(frozen=True, slots=True)
class Version:
    """What tells that a file has changed."""

    content: tuple[int, int, int, int]
    """Device, inode, size, and the time of the last change of its bytes, which anybody can put back."""
    names: int
    """How many names it has."""
    changed: int
    """The time of the last change of anything, names included."""

    def is_of(self, other: Version) -> bool:
        """Tell whether two are of the same bytes; a file that got or lost a name meanwhile has a new time for that."""
        return self.content == other.content and (self.changed == other.changed or self.names != other.names)


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
    if known is not None and not _version(os.fstat(fd)).is_of(known):
        raise SourceChanged(path)


def _version(found: os.stat_result) -> Version:
    content = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return Version(content, found.st_nlink, found.st_ctime_ns)
