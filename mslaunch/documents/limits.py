"""What tells that a file has changed, without reading it."""

from __future__ import annotations

import codecs
import errno
import math
import os
import stat
from pathlib import Path
from typing import BinaryIO

Stamp = tuple[int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Return what differs as soon as a file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


MOST_BYTES = 10 << 20
"""Of a file that a person writes."""
DEEPEST = 100
_PIECE = 1 << 20
LONGEST_NUMBER = 40
"""Digits: more than 128 bits hold. Longer ones cost time that grows with their square."""


class Unreadable(ValueError):
    """A document that cannot be read: what is wrong, and where in the text if that is known."""

    def __init__(self, what: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.line = line
        self.column = column

    def where(self, name: str) -> str:
        """Say where it stands: `cfg.yaml:12`."""
        return name if self.line is None else f"{name}:{self.line}"


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read; OSError for a pipe, which may never have an end, and for a device."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a file, but a folder, a pipe or a device", str(path))
    return os.fdopen(file, "rb")


def read_text(path: Path, most: int = MOST_BYTES, errors: str = "strict", only_files: bool = False) -> str:
    """Read a text of bounded size, with `only_files` no pipe, which may never end; OSError is the caller's."""
    data = bytearray()
    if only_files and not stat.S_ISREG(path.stat().st_mode):
        raise Unreadable("it is not a file, but a folder, a pipe or a device")
    with path.open("rb") as file:  # may be a pipe, which has no size
        while len(data) <= most and (piece := file.read(_PIECE)):
            data += piece
    if len(data) > most:
        raise Unreadable(f"it is larger than {most >> 20} MB")
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors)  # editors on Windows put a mark there
    except UnicodeDecodeError as error:
        raise Unreadable("not text in UTF-8", data.count(b"\n", 0, error.start) + 1) from None


def too_deep(line: int | None = None) -> Unreadable:
    return Unreadable(f"nested deeper than {DEEPEST} levels", line)


def to_int(digits: str) -> int:
    """Read a whole number of bounded length."""
    if len(digits) > LONGEST_NUMBER:
        raise Unreadable(f"the number {digits[:12]}… has {len(digits)} digits")
    return int(digits)


def to_float(digits: str) -> float:
    """Read a number; what is too large for one is no number."""
    value = float(digits)
    if math.isinf(value):
        raise Unreadable(f"the number {digits[:24]} is too large")
    return value
