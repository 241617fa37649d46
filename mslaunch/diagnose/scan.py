"""Reading one log: exceptions, known patterns, the last sign of life.

A log is read in blocks, once, and with bounded memory, whatever its size. Its lines are told apart by their shapes
(shapes.py); only those that may tell something are looked at one by one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from mslaunch.diagnose.exceptions import end_of_exception, exception_text
from mslaunch.diagnose.patterns import Match, match_line
from mslaunch.diagnose.shapes import EXCEPTION, PEER, STEP, TIME, Kind, Shapes, shape_of
from mslaunch.words import cut_middle

READ_LIMIT = 8 << 20  # what went wrong stands at the end of a log
BLOCK = 1 << 18
LONGEST = 1 << 20  # a line or an exception that is longer is taken apart
TRACEBACK_LIMIT = 1 << 16
SUMMARY_LIMIT = 1 << 12
_MOST = 500  # how many findings of a kind are kept from the start of a log, and as many from its end
_TIME = re.compile(rb"(\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d)\.(\d{3})\.(\d{3})")
_STEP = re.compile(rb"epoch:\s*(\d{1,18}),?\s+step:\s*(\d{1,18})(?!\d)", re.IGNORECASE)
_PEER_GONE = re.compile(rb"Client connected end of file! Peer \w+ ip: \S+, port: (\d{1,5})\b")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception, or a fatal signal with the stack that Python saw."""

    line: int
    summary: str
    traceback: str
    time: float | None
    end: int = 0
    """The last line of it."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A known pattern in a line of a log."""

    line: int
    match: Match
    time: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    """What one log tells."""

    raised: tuple[Raised, ...] = ()
    hits: tuple[Hit, ...] = ()
    last_time: float | None = None
    last_step: tuple[int, int] = (0, 0)
    gone_ports: tuple[int, ...] = ()
    """Ports of peers whose connection broke while this rank was alive."""
    lines: int = 0


class _Kept(Generic[T]):
    """The first and the last of many."""

    def __init__(self) -> None:
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=_MOST)

    def add(self, item: T) -> None:
        (self._first if len(self._first) < _MOST else self._last).append(item)

    def items(self) -> list[T]:
        return [*self._first, *self._last]


@dataclass
class Scanner:
    """Takes a log in blocks of any size; what it finds has the numbers of the log's lines."""

    lines: int = 0
    """How many lines have been seen, or stand before what is scanned."""
    shapes: Shapes = field(default_factory=Shapes)
    _rest: bytes = b""
    _previous: bytes = b""
    _timed: bytes = b""
    _step: tuple[int, int] = (0, 0)
    _raised: _Kept[Raised] = field(default_factory=_Kept)
    _hits: _Kept[Hit] = field(default_factory=_Kept)
    _first_hits: dict[str, Hit] = field(default_factory=dict)
    _gone: dict[int, None] = field(default_factory=dict)
    _unfinished: bool = False

    def feed(self, block: bytes) -> None:
        """Scan the next block, up to what may go on in the one after it."""
        data = self._rest + block
        end = data.rfind(b"\n") + 1
        if len(data) > LONGEST and (not end or self._unfinished):
            self._scan(data, final=True)
            self.lines -= not data.endswith(b"\n")
            self._rest = b""
        elif end:
            self._rest = self._scan(data[:end], final=False) + data[end:]
        else:
            self._rest = data

    def finish(self) -> Findings:
        """Return what the log tells, now that there is no more of it."""
        self._scan(self._rest, final=True)
        self._rest = b""
        hits = {hit.line: hit for hit in (*self._hits.items(), *self._first_hits.values())}
        return Findings(
            raised=tuple(self._raised.items()),
            hits=tuple(hits[line] for line in sorted(hits)),
            last_time=_time(self._timed),
            last_step=self._step,
            gone_ports=tuple(self._gone),
            lines=self.lines,
        )

    def _scan(self, data: bytes, final: bool) -> bytes:
        """Scan whole lines; return those from an exception on that has not ended yet."""
        if not data:
            return b""
        shapes = shape_of(data).split(b"\n")
        if data.endswith(b"\n"):
            shapes.pop()
        kinds = self.shapes.find(set(shapes))
        stop = len(shapes)
        if kinds:
            lines = data.split(b"\n")[:stop]
            if any(kind.rows or kind.marks - {TIME, STEP} for kind in kinds.values()):
                stop = self._look(lines, shapes, kinds, final)
            self._note_progress(lines[:stop], shapes[:stop], kinds)
            rest = lines[stop:]
        self.lines += stop
        self._previous = data[data.rfind(b"\n", 0, len(data) - 1) + 1 :][:16]
        self._unfinished = stop < len(shapes)
        return b"\n".join([*rest, b""]) if self._unfinished else b""

    def _look(self, lines: Sequence[bytes], shapes: Sequence[bytes], kinds: Mapping[bytes, Kind], final: bool) -> int:
        """Look at every line that may tell something; return where to go on with the next block."""
        ended = 0
        for at in [at for at, shape in enumerate(shapes) if shape in kinds]:
            kind, line = kinds[shapes[at]], lines[at]
            if TIME in kind.marks:
                self._note_time(line)
            if EXCEPTION in kind.marks and at >= ended:
                end = end_of_exception(lines, at, lines[at - 1] if at else self._previous)
                if end is not None and end.is_open and not final:
                    return at
                if end is not None:
                    ended = end.line
                    self._add_exception(lines[at:ended], self.lines + at + 1)
            if kind.rows and (found := match_line(line.decode("utf-8", "replace").rstrip("\r"), kind.rows)):
                hit = Hit(self.lines + at + 1, found, _time(self._timed))
                self._hits.add(hit)
                self._first_hits.setdefault(found.pattern.id, hit)
            if PEER in kind.marks and (peer := _PEER_GONE.search(line)):
                self._gone[int(peer[1])] = None
        return len(shapes)

    def _add_exception(self, lines: Sequence[bytes], number: int) -> None:
        summary, text = exception_text(lines)
        text = cut_middle(text, TRACEBACK_LIMIT)
        last = number + len(lines) - 1
        self._raised.add(Raised(number, cut_middle(summary, SUMMARY_LIMIT), text, _time(self._timed), last))

    def _note_progress(self, lines: Sequence[bytes], shapes: Sequence[bytes], kinds: Mapping[bytes, Kind]) -> None:
        """Note the last time and the last step of a block."""
        for mark, note in ((TIME, self._note_time), (STEP, self._note_step)):
            if any(mark in kind.marks for kind in kinds.values()):
                for at in range(len(lines) - 1, -1, -1):
                    kind = kinds.get(shapes[at])
                    if kind is not None and mark in kind.marks and note(lines[at]):
                        break

    def _note_time(self, line: bytes) -> bool:
        found = _TIME.search(line)
        if found:
            self._timed = found[0]
        return found is not None

    def _note_step(self, line: bytes) -> bool:
        found = _STEP.search(line)
        if found:
            self._step = max(self._step, (int(found[1]), int(found[2])))
        return found is not None


def scan_file(path: Path, limit: int = READ_LIMIT) -> Findings:
    """Scan the last megabytes of a log; line numbers are those of the whole file."""
    return scan_tail(path, limit, lines_before_tail(path, limit))


def scan_tail(path: Path, limit: int, lines_before: int = 0, shapes: Shapes | None = None) -> Findings:
    """Scan the end of a log; its lines are counted from what stands before them. Logs of one run share their shapes."""
    scanner = Scanner(lines_before, shapes or Shapes())
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - limit))
        while block := file.read(BLOCK):
            scanner.feed(block)
    return scanner.finish()


def lines_before_tail(path: Path, limit: int) -> int:
    """Count the lines above the end of a log."""
    count = 0
    with path.open("rb") as file:
        left = max(0, file.seek(0, 2) - limit)
        file.seek(0)
        while left > 0 and (block := file.read(min(left, BLOCK))):
            count += block.count(b"\n")
            left -= len(block)
    return count


def scan(lines: Sequence[str], skipped: int = 0) -> Findings:
    """Find exceptions and patterns in the lines of one log."""
    scanner = Scanner(skipped)
    scanner.feed("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    return scanner.finish()


def _time(text: bytes) -> float | None:
    """Return the time that a line begins with, in seconds since 1970."""
    found = _TIME.search(text)
    if not found:
        return None
    try:
        return datetime.strptime((b"%b.%b%b" % found.groups()).decode(), "%Y-%m-%d-%H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError):
        return None
