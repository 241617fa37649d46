"""Writes what hosts send of their files into the run's folder: in order, inside of it, and through no link."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from mslaunch.launcher.claims import FileClaims
from mslaunch.launcher.event_check import Rejected
from mslaunch.shared import messages
from mslaunch.shared.wire import decode_data

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


class CollectedFiles:
    """The files of a run that hosts send piece by piece; each piece begins where the one before has ended."""

    def __init__(self, folder: Path, claims: FileClaims) -> None:
        self._folder = folder
        self._claims = claims
        self._ends: dict[tuple[str, str], int] = {}

    def write(self, event: messages.Message) -> tuple[int, str | None]:
        """Write a piece; return how long it is, and why it could not be written here, if so."""
        host, path, offset = event["host"], event["path"], event["offset"]
        parts = self._claims.check(host, path)
        if offset and offset != self._ends.get((host, path)):
            raise Rejected(f"sent a piece of {path!r} at {offset}, where none was to come")
        try:
            data = decode_data(event["data"], event["is_text"])
        except ValueError:
            raise Rejected(f"sent a piece of {path!r} that cannot be decoded") from None
        self._ends[host, path] = offset + len(data)
        try:
            write_piece(self._folder, parts, offset, data)
        except OSError as error:  # a full disk here must not end the job
            return len(data), f"{path} cannot be written here: {error.strerror or error}"
        return len(data), None


def write_piece(folder: Path, parts: Sequence[str], offset: int, data: bytes) -> None:
    """Write a piece of a file below a folder; the first piece replaces what was there."""
    *folders, name = parts
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in folders:
            place = _enter(place, part)
        file = os.open(name, _FILE, 0o600, dir_fd=place)
    finally:
        os.close(place)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileExistsError(f"{name} is no regular file")
        if offset == 0:
            os.ftruncate(file, 0)
        view = memoryview(data)
        while view:
            written = os.pwrite(file, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(file)


def _enter(place: int, part: str) -> int:
    """Open a folder in an open one, made where it is missing, and close the outer one."""
    try:
        inner = os.open(part, _FOLDER, dir_fd=place)
    except FileNotFoundError:
        os.mkdir(part, 0o700, dir_fd=place)
        inner = os.open(part, _FOLDER, dir_fd=place)
    os.close(place)
    return inner
