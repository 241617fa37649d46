"""Logs of ranks line by line, with the time of each line, and merged by it: of any size, with bounded memory."""

from __future__ import annotations

import heapq
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 15  # read at once; files are not kept open, since there may be thousands
LONGEST = 1 << 20  # a line that is longer is taken apart
MOST_HIDDEN = 5000  # hidden lines in a row that the last lines of a log may stand above


@dataclass(frozen=True, slots=True)
class LogLines:
    """Lines of one log that came at the same time: thousands are handled as quickly as one."""

    rank: int | None
    time: float | None
    """When they came, to about a tenth of a second; None for a log without times."""
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which lines of a log to read."""

    matches: Callable[[str], object] | None = None
    hides: Callable[[str], bool] | None = None  # recognises lines to leave out
    since: float | None = None
    last: int | None = None
    with_rest: bool = True  # whether a last line without a newline counts


class TimedLog:
    """The log of one rank, or of the scheduler, which has no times."""

    def __init__(self, rank: int | None, log: Path, times: Path | None = None) -> None:
        self.rank = rank
        self.path = log
        self._times = times
        self.offset = 0
        """How far it has been read."""

    @property
    def has_times(self) -> bool:
        return self._times is not None and self._times.is_file()

    def lines(self, selection: Selection) -> Iterator[LogLines]:
        """Yield the lines that a selection includes."""
        if selection.last is None:
            return self._matching(selection, self._start(selection.since))
        if selection.matches is not None:
            start = self._start(selection.since)
        elif selection.hides is not None and selection.last:
            start = _start_of_last(self.path, selection.last + MOST_HIDDEN)
        else:
            start = _start_of_last(self.path, selection.last)
        matching = self._matching(selection, start)
        single = (LogLines(lines.rank, lines.time, (text,)) for lines in matching for text in lines.texts)
        return iter(deque(single, maxlen=selection.last))

    def _matching(self, selection: Selection, start: int) -> Iterator[LogLines]:
        for time, lines in self._timed(start, selection.with_rest):
            if selection.since is None or time is None or time >= selection.since:
                texts = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
                if selection.matches is not None:
                    texts = list(filter(selection.matches, texts))
                if selection.hides is not None:
                    texts = [text for text in texts if not selection.hides(text)]
                if texts:
                    yield LogLines(self.rank, time, texts)

    def _timed(self, start: int, with_rest: bool) -> Iterator[tuple[float | None, list[bytes]]]:
        """Yield lines that came together: those that end between two pairs."""
        self.offset = start
        pairs = _pairs(self._times)
        time, until = next(pairs, (None, sys.maxsize))
        for block, size in _lines(self.path, start, with_rest):
            end, at, begun = self.offset, time, 0
            for number, line in enumerate(block):
                end += len(line) + 1
                if end > until:
                    while end > until:
                        pair = next(pairs, (time or 0.0, sys.maxsize))
                        time, until = max(time or 0.0, pair[0]), pair[1]
                    yield at, block[begun:number]
                    at, begun = time, number
            self.offset += size
            yield at, block[begun:]

    def _start(self, since: float | None) -> int:
        """Return where the lines since a time begin, or a little above: at the start of a line."""
        before = at = 0
        for time, offset in _pairs(self._times) if since is not None else ():
            if since is not None and time >= since:
                break
            before, at = at, offset
        return _start_of_line(self.path, before)


def merge_logs(logs: Sequence[TimedLog], selection: Selection) -> Iterator[LogLines]:
    """Yield the lines of logs by their times; those of logs without times come first, log by log."""
    for log in logs:
        if not log.has_times:
            yield from log.lines(selection)
    timed = [log.lines(selection) for log in logs if log.has_times]
    yield from heapq.merge(*timed, key=lambda lines: lines.time or 0.0)


def _blocks(path: Path | None, offset: int = 0) -> Iterator[bytes]:
    while path is not None and (data := _read(path, offset, BLOCK)):
        offset += len(data)
        yield data


def _read(path: Path, offset: int, size: int) -> bytes:
    """Read a piece of a file; nothing where it cannot be read, or is a pipe that somebody has put there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(file, size, offset)
        finally:
            os.close(file)
    except OSError:
        return b""


def _lines(path: Path | None, start: int, with_rest: bool) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines from an offset on, block by block, and how many bytes they are in the file."""
    rest = b""
    for block in _blocks(path, start):
        data = rest + block
        *lines, rest = data.split(b"\n")
        if lines:
            yield lines, len(data) - len(rest)
        if len(rest) > LONGEST:
            yield [rest], len(rest)
            rest = b""
    if rest and with_rest:
        yield [rest], len(rest)


def _pairs(path: Path | None) -> Iterator[tuple[float, int]]:
    """Yield the pairs of log.times; what is none ends them."""
    for lines, _ in _lines(path, 0, with_rest=False):
        for line in lines:
            try:
                yield read_pair(line)
            except ValueError:
                return


def read_pair(line: bytes) -> tuple[float, int]:
    """Read a line of log.times: a time, and how long the log was then."""
    time, _, offset = line[:64].partition(b" ")
    return min(float(time), 1e11), int(offset)


def _start_of_line(path: Path, offset: int) -> int:
    while offset > 0:
        before = max(0, offset - BLOCK)
        newline = _read(path, before, offset - before).rfind(b"\n")
        if newline >= 0:
            return before + newline + 1
        offset = before
    return 0


def _start_of_last(path: Path, count: int) -> int:
    try:
        size = at = path.stat().st_size
    except OSError:
        return 0
    left = count + 1 if _read(path, size - 1, 1) == b"\n" else count
    while at > 0 and left > 0:
        before = max(0, at - BLOCK)
        block = _read(path, before, at - before)
        at = before
        newline = len(block)
        while left > 0 and (newline := block.rfind(b"\n", 0, newline)) >= 0:
            left -= 1
            if left == 0:
                return before + newline + 1
        if not block:
            return 0
    return 0 if count else size
