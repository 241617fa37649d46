"""Bytes of files: reads that fill their buffer, writes that cost least."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from mslaunch.errors import ShardUnreadable

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
