"""A run's folder kept like the one in the launcher's pod, from the pod's log."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.transports.kubernetes.frames import PIECE, WHOLE, Frame, decode

STATE = "kubernetes.mirror"
"""Holds the number of the last piece that was written; whoever writes to the folder has it locked."""
_JSON = (layout.RECORD, layout.PLAN)
_LARGEST = 512 << 20


class Mirror:
    """Writes pieces into a run's folder; those that it has already are left out."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self.exit_code: int | None = None
        self._file = file
        self._last = _number(os.pread(file, 32, 0))
        self._partial: dict[str, bytearray] = {}

    def feed(self, lines: Iterable[bytes]) -> None:
        """Write what a pod's log says, to its end."""
        for line in lines:
            frame = decode(line)
            if frame is None:
                continue
            if frame.exit_code is not None:
                self.exit_code = frame.exit_code
            elif frame.number > self._last:
                self._apply(frame)
            elif frame.file in self._partial or (frame.at == WHOLE and len(frame.data) == PIECE):
                self._collect(frame)  # the first part of a file whose rest is new
            if frame.number > self._last:
                self._last = frame.number
                os.pwrite(self._file, f"{frame.number:<20}".encode(), 0)

    def _apply(self, frame: Frame) -> None:
        if frame.file.endswith(".json"):
            if (content := self._collect(frame)) is not None:
                self._replace(frame.file, content)
            return
        path = self.folder / frame.file
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if frame.at == WHOLE else 0)
        with suppress(OSError):
            file = os.open(path, flags, 0o600)
            try:
                os.pwrite(file, frame.data, max(frame.at, 0))
            finally:
                os.close(file)

    def _collect(self, frame: Frame) -> bytes | None:
        """Put a file that is replaced as a whole together; return it once it is complete."""
        if frame.at == WHOLE:
            if len(frame.data) < PIECE:
                self._partial.pop(frame.file, None)
                return frame.data
            self._partial[frame.file] = bytearray(frame.data)
            return None
        so_far = self._partial.get(frame.file)
        if so_far is None or len(so_far) != frame.at or frame.at > _LARGEST:
            return None
        if not frame.data:
            return bytes(self._partial.pop(frame.file))
        so_far += frame.data
        return None

    def _replace(self, name: str, content: bytes) -> None:
        if name in _JSON:
            content = _as_submitted(content)
        path = self.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(OSError):
            beside.write_bytes(content)
            beside.replace(path)


def _as_submitted(content: bytes) -> bytes:
    """The record of a run that its submitter finds again: the pod's launcher knows of nodes that join it only."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(raw, dict):
        return content
    return json.dumps({**raw, "transport": "kubernetes"}, indent=1).encode()


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0


@contextmanager
def locked(folder: Path) -> Iterator[Mirror | None]:
    """The mirror of a folder; None where another process keeps it up to date."""
    file = os.open(folder / STATE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        yield Mirror(folder, file)
    finally:
        os.close(file)


def amend(folder: Path, verdict: dict[str, Any]) -> None:
    """Put what Kubernetes knows about a failure into the run's verdict; the rank and its log stay."""
    path = folder / layout.RECORD
    with suppress(OSError, ValueError):
        raw = json.loads(path.read_bytes())
        raw["verdict"] = {**(raw.get("verdict") or {}), **verdict}
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(raw, indent=1))
        beside.replace(path)
