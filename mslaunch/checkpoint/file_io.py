"""Bytes of files: a stretch as memory, reads that fill their buffer, writes of the size that costs least."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mslaunch.errors import ShardUnreadable

WRITE = 64 << 10
"""Longer ones take Linux up to four times the CPU time: it then wants longer stretches of memory for the file."""
_READ_AT_ONCE = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
"""A page that is not there when it is to be written costs the kernel a second attempt."""


def became_shorter(path: Path) -> ShardUnreadable:
    return ShardUnreadable(str(path), "it became shorter while it was read")


def read_fully(fd: int, path: Path, room: memoryview, at: int) -> None:
    got = 0
    while got < len(room):
        count = os.preadv(fd, [room[got:]], at + got)
        if count == 0:
            raise became_shorter(path)
        got += count


@contextmanager
def mapped(fd: int, path: Path, at: int, length: int) -> Iterator[memoryview]:
    """A stretch of a file as memory, to be passed to `write_at` and nowhere else.

    The kernel then copies it from file to file once. Should the file become shorter meanwhile, a system call ends with
    EFAULT; reading that memory here would end the process.
    """
    more = at % mmap.ALLOCATIONGRANULARITY
    try:
        window = mmap.mmap(fd, more + length, _READ_AT_ONCE, mmap.PROT_READ, offset=at - more)
    except ValueError:  # longer than the file
        raise became_shorter(path) from None
    try:
        with memoryview(window) as view, view[more:] as stretch:
            yield stretch
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise became_shorter(path) from None
        raise
    finally:
        with suppress(BufferError):  # an error's traceback may hold a piece of it
            window.close()


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
