"""Reading one log: exceptions, known patterns, who wrote it and waits for whom, the last sign of life.

A log is read in blocks, once, and with bounded memory, whatever its size. Only lines that hold a text which a pattern
needs are looked at one by one: these texts are found in one pass over the bytes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

from mslaunch.diagnose.logs.exceptions import End, exception_text, find_exception, is_source_line, label_size
from mslaunch.diagnose.patterns.pattern import CompiledPattern, Match, match_line, rows
from mslaunch.diagnose.waiting.line_facts import Fact, Form, forms, read_fact
from mslaunch.text import cut_middle

_EXCEPTION_MARKS = (b"Traceback (most recent call last)", b"Fatal Python error: ", b'  File "')


@dataclass(frozen=True, slots=True)
class LineKind:
    """What a line may tell that holds some of the texts."""

    may_raise: bool
    rows: tuple[CompiledPattern, ...]
    forms: tuple[Form, ...]


@lru_cache(4096)
def _kind_of(literals: frozenset[int]) -> LineKind:
    """Return what a line may tell that holds these texts, by their numbers; those of exceptions are the first."""
    users = _table()[1]
    numbers = {number for literal in literals for number in users[literal]}.union(_rows_without_literals())
    patterns = tuple(row for number, row in enumerate(rows()) if number in numbers)
    line_forms = tuple(form for number, form in enumerate(forms(), len(rows())) if number in numbers)
    return LineKind(min(literals, default=len(users)) < len(_EXCEPTION_MARKS), patterns, line_forms)


@cache
def _rows_without_literals() -> tuple[int, ...]:
    """Rows that no literal tells of: they are tried on every line."""
    return tuple(number for number, row in enumerate(rows()) if row.literals is None)


@cache
def _table() -> tuple[Any, list[list[int]]]:
    """Return what finds the texts, and for each the numbers of the rows and forms that need it."""
    from ahocorasick_rs import BytesAhoCorasick, Implementation

    users: dict[bytes, list[int]] = {literal: [] for literal in _EXCEPTION_MARKS}
    needed = [*(row.literals or () for row in rows()), *(form.literals for form in forms())]
    for number, texts in enumerate(needed):
        for text in texts:
            users.setdefault(text.encode("utf-8", "replace"), []).append(number)
    # Left to itself the library takes a slower automaton for more than a hundred texts.
    return BytesAhoCorasick(list(users), implementation=Implementation.DFA), list(users.values())


Step = tuple[int, int]
"""Epoch and step."""
NO_STEP: Step = (0, 0)
EPOCH_MARKS = (b"poch:", b"POCH:")
_TRIED = 64  # lines of a block, from its end, that name an epoch
_STEP = re.compile(
    rb"epoch:\s*(\d{1,18}),?\s+step:\s*(\d{1,18})(?!\d)|epoch:\[\s*(\d{1,18})/\s*\d{1,18}\], step:\[\s*(\d{1,18})/",
    re.IGNORECASE,
)
WENT_ON = 3
"""Steps after an error that show that it was handled; ranks that share a log print one or two, then they wait."""


def last_step(data: bytes, start: int, end: int) -> Step:
    """Return the last step that some lines of a block tell of."""
    last = NO_STEP
    for mark in EPOCH_MARKS:
        at = data.rfind(mark, start, end)
        for _ in range(_TRIED):
            if at < 0:
                break
            line_end = data.find(b"\n", at)
            match = _STEP.search(data, max(0, at - 1), line_end if line_end >= 0 else len(data))
            if match:
                last = max(last, (int(match[1] or match[3]), int(match[2] or match[4])))
                break
            at = data.rfind(mark, start, at)
    return last


BLOCK = 1 << 18
LONGEST = 1 << 20  # a line or an exception that is longer is taken apart
TRACEBACK_LIMIT = 1 << 16
SUMMARY_LIMIT = 1 << 12
_MOST = 200  # how many findings of a kind are kept from the start of a log, and as many from its end
_TIME_SHAPE = b"0000-00-00-00:00:00.000.000"
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_FACTS_KEPT = 2000
_HEAD = 200  # the level of a line, and the library that wrote it, stand in its first characters
_RUNTIME = re.compile(rb"^\[(?:ERROR|CRITICAL)\]|\bNCCL (?:WARN|ERROR)\b|^terminate called |^[EF]\d{4} \d\d:")
_CHILD = re.compile(rb"Process [\w-]{1,40}:\s*$")  # what multiprocessing prints above an exception
_LINE_ABOVE = 64

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
    log: str = ""
    is_labelled: bool = False
    """Whether a launcher put a label before its lines: the log is of several processes."""
    rank: int | None = None
    """The rank in that label."""
    steps: int = 0
    """How many lines between the first finding and this one told a step."""
    is_of_child: bool = False
    """Whether a process of multiprocessing printed it: the rank itself went on."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A known pattern in a line of a log."""

    line: int
    match: Match
    time: float | None
    log: str = ""
    steps: int = 0
    """How many lines between the first finding and this one told a step."""
    is_from_runtime: bool = False
    """Whether MindSpore, CANN or another library wrote the line as an error of its own; else a script may have."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What one log tells."""

    raised: tuple[Raised, ...] = ()
    hits: tuple[Hit, ...] = ()
    last_time: float | None = None
    last_step: Step = NO_STEP
    lines: int = 0
    facts: tuple[Fact, ...] = ()
    """Who wrote it, and for whom the writer waits."""


class _FirstAndLast(Generic[T]):
    """The first and the last of many."""

    def __init__(self) -> None:
        self._first: list[T] = []
        self._last: deque[T] = deque(maxlen=_MOST)

    def add(self, item: T) -> None:
        (self._first if len(self._first) < _MOST else self._last).append(item)

    def items(self) -> list[T]:
        return [*self._first, *self._last]

    def __bool__(self) -> bool:
        return bool(self._first)


@dataclass
class Scanner:
    """Takes a log in blocks of any size; what it finds has the numbers of the log's lines."""

    lines: int = 0
    """How many lines have been seen, or stand before what is scanned."""
    log: str = ""
    _rest: bytes = b""
    _previous: bytes = b""
    _timed: bytes = b""
    _step: Step = NO_STEP
    _steps: int = 0
    _noted: int = 0
    _raised: _FirstAndLast[Raised] = field(default_factory=_FirstAndLast)
    _hits: _FirstAndLast[Hit] = field(default_factory=_FirstAndLast)
    _first_hits: dict[str, Hit] = field(default_factory=dict)
    _facts: dict[tuple[object, ...], Fact] = field(default_factory=dict)
    _unfinished: bool = False

    def feed(self, block: bytes) -> None:
        """Scan the next block, up to what may go on in the one after it."""
        data = self._rest + block if self._rest else block
        end = data.rfind(b"\n") + 1
        if len(data) > LONGEST and (not end or self._unfinished):
            self._scan(data, final=True)
            self.lines -= not data.endswith(b"\n")
            self._rest = b""
        elif end:
            self._rest = self._scan(data[:end], final=False) + data[end:]
        else:
            self._rest = data

    def skip(self, lines: int) -> None:
        """Count lines that were left out of what is read; nothing goes on across them."""
        self._scan(self._rest, final=True)
        self._rest, self._unfinished = b"", False
        self.lines += lines

    def finish(self) -> Findings:
        """Return what the log tells, now that there is no more of it."""
        self._scan(self._rest, final=True)
        self._rest = b""
        hits = {hit.line: hit for hit in (*self._hits.items(), *self._first_hits.values())}
        return Findings(
            raised=tuple(raised for raised in self._raised.items() if not self._was_handled(raised)),
            hits=tuple(hits[line] for line in sorted(hits) if not self._was_handled(hits[line])),
            last_time=_time(self._timed),
            last_step=self._step,
            lines=self.lines,
            facts=tuple(self._facts.values()),
        )

    def _was_handled(self, finding: Raised | Hit) -> bool:
        """Tell whether the process trained on after an error; of a log of several processes nobody knows which did."""
        return self._steps - finding.steps >= WENT_ON and not (isinstance(finding, Raised) and finding.is_labelled)

    def _scan(self, data: bytes, final: bool) -> bytes:
        """Scan whole lines; return those from an exception on that has not ended yet."""
        if not data:
            return b""
        matches = _table()[0].find_matches_as_indexes(data, overlapping=True)
        scanned = len(data)
        if matches or _rows_without_literals():
            scanned = self._look(data, matches, final)
        self._note(data, scanned)
        self._noted = 0
        self.lines += data.count(b"\n", 0, scanned) + (scanned == len(data) and not data.endswith(b"\n"))
        self._previous = data[data.rfind(b"\n", 0, max(0, scanned - 1)) + 1 : scanned][:_LINE_ABOVE]
        self._unfinished = scanned < len(data)
        return data[scanned:]

    def _look(self, data: bytes, matches: Sequence[tuple[int, int, int]], final: bool) -> int:
        """Look at every line that may tell something; return how many bytes are done with."""
        lines: list[bytes] = []
        at = counted = ended = 0
        for start, end, kind in _candidate_lines(data, matches):
            at += data.count(b"\n", counted, start)
            counted = start
            self._note(data, min(end + 1, len(data)))
            if kind.may_raise and at >= ended:
                lines = lines or data.removesuffix(b"\n").split(b"\n")
                above = lines[at - 1] if at else self._previous
                exception = find_exception(lines, at, above)
                if exception is not None and exception.is_open and not final:
                    return start
                if exception is not None:
                    ended = exception.line
                    self._add_exception(exception, self.lines + at + 1, self.lines + ended, above)
            if at >= ended or not is_source_line(data[start:end]):
                self._match(data[start:end], self.lines + at + 1, kind)
        return len(data)

    def _match(self, line: bytes, number: int, kind: LineKind) -> None:
        if not kind.rows and not kind.forms:
            return
        text = line.decode("utf-8", "replace").rstrip("\r")
        level = label_size(line)  # labels are ASCII
        if kind.rows and (match := match_line(text, kind.rows, level)):
            is_from_runtime = _RUNTIME.search(line[level : level + _HEAD]) is not None
            hit = Hit(number, match, _time(self._timed), self.log, self._steps, is_from_runtime)
            self._hits.add(hit)
            self._first_hits.setdefault(match.pattern.id, hit)
        if kind.forms and len(self._facts) < _FACTS_KEPT:
            fact = read_fact(text, kind.forms, number, _time(self._timed), self.log, level)
            if fact is not None:
                same = (fact.kind, fact.pid, *fact.values.items())
                self._facts.setdefault(same if fact.kind != "address" else (number,), fact)

    def _add_exception(self, end: End, first: int, last: int, above: bytes) -> None:
        summary, text = exception_text(end.block, end.below)
        text, summary = cut_middle(text, TRACEBACK_LIMIT), cut_middle(summary, SUMMARY_LIMIT)
        labels = (end.writer != b"", end.rank)
        is_of_child = _CHILD.match(above) is not None
        self._raised.add(
            Raised(first, summary, text, _time(self._timed), last, self.log, *labels, self._steps, is_of_child)
        )

    def _note(self, data: bytes, end: int) -> None:
        """Note the last time and step up to a place of a block, and, once there is a finding, how many steps follow."""
        if end <= self._noted:
            return
        self._note_time(data, self._noted, end)
        self._step = max(self._step, last_step(data, self._noted, end))
        if self._hits or self._raised:
            self._steps += sum(data.count(mark, self._noted, end) for mark in EPOCH_MARKS)
        self._noted = end

    def _note_time(self, data: bytes, start: int, end: int) -> None:
        """Note the last time that stands in some lines of a block: most often near their end."""
        window = 4096
        while start < end:
            begin = max(start, end - window)
            at = data[begin:end].translate(_DIGITS).rfind(_TIME_SHAPE)
            if at >= 0:
                self._timed = data[begin + at : begin + at + len(_TIME_SHAPE)]
                return
            end = begin + len(_TIME_SHAPE) if begin > start else start
            window *= 4


def _candidate_lines(data: bytes, matches: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int, LineKind]]:
    """Return the lines that may tell something, in order: where each starts and ends, and what it may tell."""
    texts: dict[int, tuple[int, set[int]]] = {}
    start = 0
    if _rows_without_literals():
        for line in data.removesuffix(b"\n").split(b"\n"):
            texts[start] = (start + len(line), set())
            start += len(line) + 1
    end = -1
    for literal, at, _ in sorted(matches, key=itemgetter(1)):
        if at >= end:
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            if end < 0:
                end = len(data)
        texts.setdefault(start, (end, set()))[1].add(literal)
    for start, (end, literals) in texts.items():
        yield start, end, _kind_of(frozenset(literals))


def scan_tail(path: Path, limit: int, lines_before: int = 0) -> Findings:
    """Scan the end of a log; its lines are counted from what stands before them."""
    scanner = Scanner(lines_before, str(path))
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - limit))
        while block := file.read(BLOCK):
            scanner.feed(block)
    return scanner.finish()


def scan_head(path: Path, limit: int) -> Findings:
    """Scan the start of a log."""
    scanner = Scanner(log=str(path))
    with path.open("rb") as file:
        scanner.feed(file.read(limit))
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
    """Return a time of the shape that logs have, in seconds since 1970; None for one that never was."""
    try:
        return datetime.strptime((text[:-4] + text[-3:]).decode(), "%Y-%m-%d-%H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError):
        return None
