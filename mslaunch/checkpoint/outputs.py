"""The files that a writer fills: new ones, or ones that should hold the same bytes already."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Protocol

from mslaunch.checkpoint.file_io import reserve, write_at
from mslaunch.checkpoint.tensor import FileLayout

COMPARED = 256 << 10
"""Bytes that are compared at a time: they stay in the processor's cache."""


class Output(Protocol):
    """An open file that takes bytes at any place, from several threads."""

    fd: int

    def put(self, data: memoryview, at: int) -> None: ...

    def busy(self) -> bool:
        """Tell whether another thread is writing there just now."""


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
        try:
            self._check(path, layout)
        except BaseException:
            os.close(self.fd)
            raise

    def _check(self, path: Path, layout: FileLayout) -> None:
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != layout.size:
            raise Differs(f"{path}: not a file of {layout.size} bytes")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise Differs(f"{path}: others may write to it")
        for at, head in layout.heads:
            self.put(memoryview(head), at)

    def put(self, data: memoryview, at: int) -> None:
        for begin in range(0, len(data), COMPARED):
            piece = bytes(data[begin : begin + COMPARED])
            if os.pread(self.fd, len(piece), at + begin) != piece:
                raise Differs("its bytes are others")

    def busy(self) -> bool:
        return False
