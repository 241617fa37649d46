"""A run's folder kept like the one in the launcher's pod, from the pod's log."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.shared import layout
from mslaunch.transports.kubernetes.frames import PIECE, WHOLE, Frame, decode, only_grows
from mslaunch.transports.kubernetes.pod_states import OVER, read_record

TRANSPORT = "kubernetes"
STATE = "kubernetes.mirror"
"""Holds the number of the last piece that was written, the pod that it came from, and where files have gaps; a writer
has it locked."""
GAP = "[{} bytes of this file are missing: the node had rotated the log of the launcher's pod before they were read]"
_TIMES = Path(layout.TIMES).suffix
_TEXT = Path(layout.LOG).suffix
_JSON = (layout.RECORD, layout.PLAN)
_NUMBER = 20
_HEADER = 512
_LARGEST_STATE = 16 << 20
_LARGEST = 512 << 20


@dataclass(slots=True)
class _Source:
    """A file in the pod that grows, as far as it is here."""

    inode: int
    shift: int = 0
    """Its offset in the pod less that here: they differ after a gap."""
    missing: int = 0
    """Bytes that never came."""


class Mirror:
    """Writes pieces into a run's folder; those that it has already are left out."""

    def __init__(self, folder: Path, file: int) -> None:
        self.folder = folder
        self.exit_code: int | None = None
        self.final: dict[str, Any] | None = None
        """The record of a run that has ended: nobody may see it before it holds what Kubernetes knows."""
        self._file = file
        state = os.pread(file, _HEADER, 0)
        number = state[:_NUMBER].strip()
        self.number = int(number) if number.isdigit() else 0
        """That of the last piece."""
        self._pod = state[_NUMBER:].decode(errors="replace").strip(" \0")
        self._sources = _read_sources(os.pread(file, _LARGEST_STATE, _HEADER))
        self._partial: dict[str, bytearray] = {}

    def feed(self, pod: str, lines: Iterable[bytes], is_whole: bool = True) -> bool:
        """Write what a pod's log says, to its end; say whether a part of the log that was left out is missing."""
        if pod != self._pod:  # a launcher that was started again counts anew
            self._pod, self.number, self._partial, self._sources = pod, 0, {}, {}
        for line in lines:
            frame = decode(line)
            if frame is None:
                continue
            if not is_whole and frame.number > self.number + 1:
                return True
            if frame.exit_code is not None:
                self.exit_code = frame.exit_code
                return False  # what follows was sent before
            if frame.number > self.number:
                self._apply(frame)
            elif frame.file in self._partial or (frame.at == WHOLE and len(frame.data) == PIECE):
                self._collect(frame)  # the first part of a file whose rest is new
            if frame.number > self.number:
                self.number = frame.number
                self._save_number()
        return False

    def missing(self) -> dict[str, int]:
        """How many bytes of which files never came; times of lines are worth nothing without the lines."""
        gaps = {name: source.missing for name, source in self._sources.items() if source.missing}
        return {name: gap for name, gap in gaps.items() if not name.endswith(_TIMES)}

    def note(self, text: str) -> None:
        """Add a line to what the launcher has printed."""
        with suppress(OSError), (self.folder / layout.LAUNCHER_LOG).open("a") as log:
            log.write(f"mslaunch: {text}\n")

    def close(self, record: dict[str, Any]) -> None:
        """Write the record of a run that has ended."""
        self.final = None
        self._write(layout.RECORD, json.dumps({**record, "transport": TRANSPORT}, indent=1).encode())
        self._save_number()

    def _save_number(self) -> None:
        if self.final is None:  # else whoever comes next has to read the record again
            os.pwrite(self._file, f"{self.number:<{_NUMBER}}{self._pod:<253}".encode(), 0)

    def _save_sources(self) -> None:
        rows = {name: [source.inode, source.shift, source.missing] for name, source in self._sources.items()}
        text = json.dumps(rows).encode()
        os.pwrite(self._file, text, _HEADER)
        os.ftruncate(self._file, _HEADER + len(text))

    def _apply(self, frame: Frame) -> None:
        if self._has_no_times(frame.file):
            return
        if only_grows(frame.file):
            with suppress(OSError):
                self._append(frame)
        elif (content := self._collect(frame)) is not None:
            self._replace(frame.file, content)

    def _append(self, frame: Frame) -> None:
        """Write what is new in a piece of a file that grows; a gap before it becomes a line that says so."""
        path = self.folder / frame.file
        path.parent.mkdir(mode=0o700, exist_ok=True)
        source = self._sources.get(frame.file)
        begins = source is None or source.inode != frame.inode
        if source is None or begins:
            source = self._sources[frame.file] = _Source(frame.inode)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_APPEND | (os.O_TRUNC if begins else 0)
        file = os.open(path, flags, 0o600)
        try:
            size, at = os.fstat(file).st_size, max(frame.at, 0)
            gap = at - size - source.shift
            text = frame.data[max(0, -gap) :]
            if gap > 0:
                source.missing += gap
                text = self._gap_line(frame.file, gap, size) + text
                source.shift = at + len(frame.data) - size - len(text)
            os.write(file, text)
        finally:
            os.close(file)
        if begins or gap > 0:
            self._save_sources()
        if gap > 0 and frame.file.endswith((_TIMES, _TEXT)):
            path.with_suffix(_TIMES).unlink(missing_ok=True)  # they count bytes of a log that is not here as a whole

    def _has_no_times(self, name: str) -> bool:
        """Whether a file holds the times of a log that has a gap, or has one itself."""
        log = name.removesuffix(_TIMES) + _TEXT
        return name.endswith(_TIMES) and any(
            self._sources[file].missing for file in (name, log) if file in self._sources
        )

    def _gap_line(self, name: str, gap: int, size: int) -> bytes:
        line = GAP.format(gap)
        if name == layout.EVENTS:
            line = json.dumps({"ev": "note", "text": line.replace("this file", name), "time": time.time()})
        elif name == layout.METRICS:
            line = ""
        return ("\n" * (size > 0) + line + "\n").encode()

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
            if path.is_file() and path.read_bytes() == content:
                return  # sent once more
        with suppress(OSError):
            beside.write_bytes(content)
            beside.replace(path)


def _read_sources(text: bytes) -> dict[str, _Source]:
    """The files that grow, as an earlier reader has noted them."""
    with suppress(Unreadable, TypeError, ValueError, AttributeError):
        return {str(name): _Source(*map(int, row)) for name, row in parse_json(text).items()}
    return {}


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
