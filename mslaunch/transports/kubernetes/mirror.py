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
from mslaunch.transports.kubernetes.endings import OVER, read_record
from mslaunch.transports.kubernetes.frames import PIECE, WHOLE, Frame, decode

TRANSPORT = "kubernetes"
STATE = "kubernetes.mirror"
"""Holds the number of the last piece that was written and the pod that it came from; a writer has it locked."""
_JSON = (layout.RECORD, layout.PLAN)
_NUMBER = 20
_LARGEST = 512 << 20


class Mirror:
    """Writes pieces into a run's folder; those that it has already are left out."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self.exit_code: int | None = None
        self.final: dict[str, Any] | None = None
        """The record of a run that has ended: nobody may see it before it holds what Kubernetes knows."""
        self._file = file
        state = os.pread(file, 300, 0)
        self._last, self._pod = _number(state[:_NUMBER]), state[_NUMBER:].decode(errors="replace").strip()
        self._partial: dict[str, bytearray] = {}

    def feed(self, pod: str, lines: Iterable[bytes], is_whole: bool = True) -> bool:
        """Write what a pod's log says, to its end; say whether a part of the log that was left out is missing."""
        if pod != self._pod:  # a launcher that was started again counts anew
            self._pod, self._last, self._partial = pod, 0, {}
        for line in lines:
            frame = decode(line)
            if frame is None:
                continue
            if not is_whole and frame.number > self._last + 1:
                return True
            if frame.exit_code is not None:
                self.exit_code = frame.exit_code
            elif frame.number > self._last:
                self._apply(frame)
            elif frame.file in self._partial or (frame.at == WHOLE and len(frame.data) == PIECE):
                self._collect(frame)  # the first part of a file whose rest is new
            if frame.number > self._last:
                self._last = frame.number
                self._save_number()
        return False

    def close(self, record: dict[str, Any]) -> None:
        """Write the record of a run that has ended."""
        self.final = None
        self._write(layout.RECORD, json.dumps({**record, "transport": TRANSPORT}, indent=1).encode())
        self._save_number()

    def _save_number(self) -> None:
        if self.final is None:  # else whoever comes next has to read the record again
            os.pwrite(self._file, f"{self._last:<{_NUMBER}}{self._pod:<253}".encode(), 0)

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
        record = read_record(content) if name in _JSON else None
        if record is None:
            self._write(name, content)
            return
        # The launcher in its pod knows of nodes that join it only; the submitter finds the run by its own transport.
        record["transport"] = TRANSPORT
        is_final = name == layout.RECORD and record.get("state") in OVER
        if name == layout.RECORD:
            self.final = record if is_final else None
        if not is_final:
            self._write(name, json.dumps(record, indent=1).encode())

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        with suppress(OSError):
            beside.write_bytes(content)
            beside.replace(path)


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
