"""Bytes of files: stretches copied inside the kernel, reads that fill their buffer, writes that cost least."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from mslaunch.errors import ShardUnreadable

WRITE = 64 << 10
"""Longer ones take Linux up to four times the CPU time: it then wants longer stretches of memory for the file."""


def became_shorter(path: Path) -> ShardUnreadable:
    return ShardUnreadable(str(path), "it became shorter while it was read")


def read_fully(fd: int, path: Path, room: memoryview, at: int) -> None:
    got = 0
    while got < len(room):
        count = os.preadv(fd, [room[got:]], at + got)
        if count == 0:
            raise became_shorter(path)
        got += count


def copy_stretch(fd: int, path: Path, at: int, target: int, to: int, length: int) -> None:
    """Copy a stretch of a file to a place in another, inside the kernel where it can."""
    done = _copy_in_kernel(fd, at, target, to, length)
    if done < length:
        room = memoryview(bytearray(min(length - done, 1 << 20)))
        for begin in range(done, length, len(room)):
            some = room[: length - begin]
            read_fully(fd, path, some, at + begin)
            write_at(target, some, to + begin)


def _copy_in_kernel(fd: int, at: int, target: int, to: int, length: int) -> int:
    """Return how much was copied; what hindered the rest, be it the file's end, reading and writing will tell."""
    done = 0
    if hasattr(os, "copy_file_range"):
        with suppress(OSError):  # two file systems, or one that cannot
            while done < length and (count := os.copy_file_range(fd, target, length - done, at + done, to + done)):
                done += count
    return done


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
