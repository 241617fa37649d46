"""Files of a run as lines of a pod's log: the one stream out of a pod that needs no further right and no open port.

A line is a mark and a JSON object: its number, the file, where the piece belongs, and the piece, compressed. A piece
says where it belongs, so a stream that was cut off is read again from its beginning without harm. A node keeps only
the newest part of a log for readers, so small files, and at the end the last part of each log, are sent again.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mslaunch.documents.json_text import parse_json
from mslaunch.shared import layout

MARK = "mslaunch-file "
PIECE = 8 << 10  # a line stays below the 16 KB at which container runtimes split lines
WHOLE = -1
"""In place of an offset: the piece begins the file anew. Further pieces of it follow with their offsets."""
_TAILS = 384 << 10
"""All of them stay below a megabyte, at which a node may rotate the log again."""
_LARGEST_TAIL = 64 << 10
_SMALLEST_TAIL = 1 << 10
_LARGEST_LINE = 64 << 10
_NAME = re.compile(rf"(?:(?:{layout.RANK}\d{{1,6}}|{layout.SCHEDULER}|{layout.SCRIPTS})/)?[\w][\w.-]{{0,99}}")
_TOP = (layout.EVENTS, layout.METRICS, layout.LAUNCHER_LOG)
_NOT_SENT = (layout.ZIP, layout.BOOT)


@dataclass(frozen=True, slots=True)
class Frame:
    """One piece of one file, or the end of the launcher with its exit code."""

    number: int
    file: str = ""
    at: int = 0
    data: bytes = b""
    exit_code: int | None = None
    inode: int = 0
    """Of a file that grows: tells a file of the next attempt from one of the same name before."""


def encode(frame: Frame) -> str:
    if frame.exit_code is not None:
        return MARK + json.dumps({"n": frame.number, "end": frame.exit_code})
    packed = base64.b64encode(zlib.compress(frame.data, 1)).decode()
    return MARK + json.dumps({"n": frame.number, "file": frame.file, "at": frame.at, "i": frame.inode, "z": packed})


def decode(line: bytes) -> Frame | None:
    """Read a line of a pod's log; None where it is no piece, or one that no launcher writes."""
    if not line.startswith(MARK.encode()) or len(line) > _LARGEST_LINE:
        return None
    try:
        raw = parse_json(line[len(MARK) :])
        if "end" in raw:
            return Frame(int(raw["n"]), exit_code=int(raw["end"]))
        unpack = zlib.decompressobj()
        data = unpack.decompress(base64.b64decode(raw["z"], validate=True), PIECE + 1)
        frame = Frame(int(raw["n"]), str(raw["file"]), int(raw["at"]), data, inode=int(raw["i"]))
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
    fits = _NAME.fullmatch(frame.file) and WHOLE <= frame.at < 1 << 40 and len(data) <= PIECE
    return frame if fits else None


class Scan:
    """Looks at a run's folder again and again, and yields what is new in it."""

    def __init__(self, folder: Path, launcher_log: Path) -> None:
        self._folder = folder
        self._launcher_log = launcher_log
        self._seen: dict[str, tuple[int, int]] = {}
        self._number = 0

    def new(self) -> Iterator[Frame]:
        for name, path in self._named():
            yield from self._grown(name, path) if only_grows(name) else self._changed(name, path)

    def small(self) -> Iterator[Frame]:
        """Yield the small files once more, for whoever can read the newest part of the log only."""
        for name, path in self._named():
            if not only_grows(name):
                self._seen.pop(name, None)
                yield from self._changed(name, path)
            elif self._seen.get(name, (0, PIECE + 1))[1] <= PIECE:
                yield from self._grown(name, path, PIECE)

    def tails(self) -> Iterator[Frame]:
        """Yield the last part of each log once more, and the small files; the record comes last."""
        growing = [(name, path) for name, path in self._named() if only_grows(name)]
        length = max(_SMALLEST_TAIL, min(_LARGEST_TAIL, _TAILS // max(1, len(growing))))
        for name, path in growing:
            yield from self._grown(name, path, length)
        yield from self.small()

    def end(self, exit_code: int) -> Frame:
        return self._frame(exit_code=exit_code)

    def _named(self) -> list[tuple[str, Path]]:
        """All files by name, the record last: it tells of the others."""
        record = self._folder / layout.RECORD
        paths = sorted(self._files(), key=lambda path: path == record)
        return [
            (layout.LAUNCHER_LOG, self._launcher_log),
            *((str(path.relative_to(self._folder)), path) for path in paths),
        ]

    def _files(self) -> Iterator[Path]:
        for path in self._folder.glob("*"):
            if path.is_file() and not path.is_symlink() and path.name not in (*_NOT_SENT, layout.LAUNCHER_LOG):
                yield path
            elif path.name == layout.SCHEDULER:
                yield from (log for log in path.glob("log*.txt") if log.is_file())
            elif path.name.startswith(layout.RANK) and path.is_dir():
                for file in path.iterdir():  # mslaunch's own: log.txt, or log.0.txt of an earlier attempt
                    if layout.original_name(file.name) in layout.RANK_FILES and not file.is_symlink():
                        yield file

    def _grown(self, name: str, path: Path, again: int = 0) -> Iterator[Frame]:
        """Yield what is new in a file that grows, and so many bytes before that once more."""
        try:
            with path.open("rb") as file:
                inode = path.stat().st_ino
                seen, at = self._seen.get(name, (inode, 0))
                at = max(0, at - again) if seen == inode else 0
                file.seek(at)
                while piece := file.read(PIECE):
                    yield self._frame(name, at or WHOLE, piece, inode=inode)
                    at += len(piece)
                    self._seen[name] = (inode, at)
        except OSError:
            return  # renamed for the next attempt: seen again the next time

    def _changed(self, name: str, path: Path) -> Iterator[Frame]:
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if self._seen.get(name) == stamp:
                return
            data = path.read_bytes()
        except OSError:
            return
        self._seen[name] = stamp
        yield self._frame(name, WHOLE, data[:PIECE])
        for at in range(PIECE, len(data), PIECE):
            yield self._frame(name, at, data[at : at + PIECE])
        if len(data) >= PIECE:
            yield self._frame(name, len(data))  # an empty piece at the end: the file is complete

    def _frame(
        self, file: str = "", at: int = 0, data: bytes = b"", exit_code: int | None = None, inode: int = 0
    ) -> Frame:
        self._number += 1
        return Frame(self._number, file, at, data, exit_code, inode)


def only_grows(name: str) -> bool:
    last = name.rpartition("/")[2]
    return name in _TOP or last.endswith((".txt", ".log", ".times"))
