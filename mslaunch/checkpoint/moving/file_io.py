"""Bytes of files: reads that fill their buffer, writes that cost least."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path, PosixPath

from mslaunch.checkpoint.formats.tensor import FileLayout
from mslaunch.errors import NO_FILE, NotReadyError, ShardUnreadable, limit_of

WRITE = 64 << 10
"""Longer ones take Linux up to four times the CPU time: it then wants longer stretches of memory for the file."""


def read_fully(fd: int, path: Path, room: memoryview, at: int) -> None:
    got = 0
    while got < len(room):
        count = read_some(fd, path, [room[got:]], at + got)
        if count == 0:
            raise ShardUnreadable(str(path), "it became shorter while it was read")
        got += count


def read_some(fd: int, path: Path, rooms: list[memoryview], at: int) -> int:
    """Read as os.preadv does; an error names the file."""
    try:
        return os.preadv(fd, rooms, at)
    except OSError as error:
        raise ShardUnreadable(str(path), error.strerror or str(error)) from None


def write_at(fd: int, data: memoryview, at: int) -> None:
    """Write in slices that end half-way between multiples of their size.

    No page is written in two halves, which costs twice. And Linux, which aligns a file's memory as long as it is,
    takes half a slice at a time: stretches that short it keeps for itself, while longer ones that are free may have
    been given back to the host of a virtual machine.
    """
    done, half = 0, WRITE // 2
    while done < len(data):
        room = WRITE - (at + done + half) % WRITE
        done += os.pwrite(fd, data[done : done + room], at + done)


def reserve(fd: int, size: int) -> None:
    """Give a new file its size, and its room where the file system can: a full disk is known now, and writes cost less.

    Not os.posix_fallocate: where the file system cannot, that writes to every block.
    """
    if _fallocate(fd, size) in (errno.ENOSPC, errno.EDQUOT):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, size)


def _fallocate(fd: int, size: int) -> int:
    """Call Linux's fallocate and return its error, 0 if there was none."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)
    if call is None:
        return errno.ENOSYS
    return ctypes.get_errno() if call(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size)) else 0


COMPARED = 256 << 10
"""Bytes that are compared at a time: they stay in the processor's cache."""


class NewFile:
    """A file that is written; the kernel lets one thread write to it at a time, and the others would wait for it."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._lock = threading.Lock()
        try:
            reserve(self.fd, layout.size)
            for at, head in layout.heads:
                os.pwrite(self.fd, head, at)
        except BaseException:
            os.close(self.fd)
            raise

    def put(self, data: memoryview, at: int) -> None:
        with self._lock:
            write_at(self.fd, data, at)

    def busy(self) -> bool:
        """Tell whether another thread is writing there just now."""
        return self._lock.locked()


class Differs(Exception):
    """A file is not what would be written now."""


class SameFile:
    """A file of the caller's that is compared with what would be written; the first difference raises Differs."""

    def __init__(self, path: Path, layout: FileLayout) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise Differs(f"{path}: {error.strerror}") from None
        status = os.fstat(self.fd)
        try:
            if not stat.S_ISREG(status.st_mode) or status.st_size != layout.size:
                raise Differs(f"{path}: not a file of {layout.size} bytes")
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise Differs(f"{path}: others may write to it")
            for at, head in layout.heads:
                self.put(memoryview(head), at)
        except BaseException:
            os.close(self.fd)
            raise

    def put(self, data: memoryview, at: int) -> None:
        for begin in range(0, len(data), COMPARED):
            piece = bytes(data[begin : begin + COMPARED])
            if os.pread(self.fd, len(piece), at + begin) != piece:
                raise Differs("its bytes are others")

    def busy(self) -> bool:
        return False


OutputFile = NewFile | SameFile
"""An open file that takes bytes at any place, from several threads."""


_CONTENT = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
"""What is the same as long as nobody has written to a file; the last one anybody can put back."""


class SourcePath(PosixPath):
    """A path, and the status that its file had when its headers were read."""

    status: os.stat_result | None = None


class SourceChanged(NotReadyError):
    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} changed while it was read; nothing was written. Run it again.")


def remember(path: Path, status: os.stat_result) -> SourcePath:
    """The path with the status of the file that was opened there."""
    made = SourcePath(path)
    made.status = status
    return made


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file to read its headers; return its descriptor and status."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would make it wait
    except OSError as error:
        raise ShardUnreadable(str(path), error.strerror or str(error)) from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ShardUnreadable(str(path), NO_FILE)
    return fd, status


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
    """Compare an open file with what it was when its headers were read.

    The time of the last change of anything tells what the others do not, unless it is that of a name got or lost.
    """
    before = path.status if isinstance(path, SourcePath) else None
    if before is None:
        return
    now = os.fstat(fd)
    is_touched = now.st_ctime_ns != before.st_ctime_ns and now.st_nlink == before.st_nlink
    if is_touched or any(getattr(now, name) != getattr(before, name) for name in _CONTENT):
        raise SourceChanged(path)
