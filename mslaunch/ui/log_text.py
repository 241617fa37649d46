"""Pieces of logs as text for a page: by byte offset, so that a log may have any size, without control characters."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from mslaunch.documents.limits import open_file
from mslaunch.run.logs import read_pair
from mslaunch.text import cut_line, plain
from mslaunch.ui.bounds import is_within

PIECE = 1 << 16  # bytes of a window
LONGEST = 2000  # characters of a line that is shown; the log has the rest
SEARCHED = 32 << 20  # bytes that one search looks through
BLOCK = 1 << 20
MOST_HITS = 200
# What a terminal takes for commands: CSI and OSC sequences. The rest of the control characters are shown as escapes.
_SEQUENCES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?)")

Mask = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class LogWindow:
    """Lines of a log, from byte `start` up to `end`, and how long the log is."""

    start: int
    end: int
    size: int
    lines: tuple[str, ...]
    ends: tuple[int, ...] = ()  # where each of them ends


@dataclass(frozen=True, slots=True)
class Hits:
    """Lines that a search has found, with their offsets, and where to go on; None at the end of the log."""

    found: tuple[tuple[int, str], ...]
    then: int | None
    size: int


def shown_line(line: bytes, mask: Mask = str) -> str:
    """Return a line as a page may show it: what was written over, and colours, are left out; secrets are masked."""
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    text = line[: 8 * LONGEST].decode("utf-8", "replace")
    left_out = max(0, len(line) - 8 * LONGEST)
    text = cut_line(plain(mask(_SEQUENCES.sub("", text))), LONGEST)
    return f"{text} ... {left_out} bytes left out, see the log" if left_out else text


def window(
    folder: Path, path: Path, at: int | None, most: int = PIECE, with_rest: bool = False, mask: Mask = str
) -> LogWindow:
    """Return whole lines from an offset on, or the last ones where `at` is None; `with_rest` also an unfinished one."""
    with _opened(folder, path) as (file, size):
        if at is None or at > size:  # somebody has cut the log: its end is shown
            return _before(file, size, size, most, with_rest, mask)
        return _after(file, at, size, most, with_rest, mask)


def window_before(folder: Path, path: Path, at: int, most: int = PIECE, mask: Mask = str) -> LogWindow:
    """Return the whole lines that end at an offset."""
    with _opened(folder, path) as (file, size):
        return _before(file, min(max(at, 0), size), size, most, True, mask)


@contextmanager
def _opened(folder: Path, path: Path) -> Iterator[tuple[int, int]]:
    """Open a file of a run and say its size; an empty one where there is none, or a link leads out of the folder."""
    file = None
    if is_within(folder, path):
        with suppress(OSError):
            file = open_file(path)
    with file or Path(os.devnull).open("rb") as opened:
        yield opened.fileno(), os.fstat(opened.fileno()).st_size


def _after(file: int, at: int, size: int, most: int, with_rest: bool, mask: Mask) -> LogWindow:
    data = os.pread(file, most, at)
    is_last = at + len(data) >= size
    end = data.rfind(b"\n") + 1
    if (not end and len(data) == most) or (is_last and with_rest):
        end = len(data)  # a line longer than a window is taken apart
    return _made(at, data[:end], size, mask)


def _before(file: int, at: int, size: int, most: int, with_rest: bool, mask: Mask) -> LogWindow:
    start = max(0, at - most)
    data = os.pread(file, at - start, start)
    if start:
        cut = data.find(b"\n") + 1
        cut = cut if cut < len(data) else 0
        start, data = start + cut, data[cut:]
    end = len(data) if with_rest else data.rfind(b"\n") + 1 or (len(data) if len(data) >= most else 0)
    return _made(start, data[:end], size, mask)


def _made(start: int, data: bytes, size: int, mask: Mask) -> LogWindow:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    ends = tuple(accumulate((len(line) + 1 for line in lines), initial=start))[1:]
    return LogWindow(start, start + len(data), size, tuple(shown_line(line, mask) for line in lines), ends)


def times_of(folder: Path, path: Path, lines: LogWindow) -> list[float | None]:
    """Return when the lines of a window came, as far as the end of a log.times tells."""
    with _opened(folder, path) as (file, size):
        data = os.pread(file, PIECE, max(0, size - PIECE))
    times: list[float | None] = []
    lengths = []
    for line in data.split(b"\n")[size > PIECE : -1]:
        with suppress(ValueError):
            time, length = read_pair(line)
            times.append(time)
            lengths.append(length)
    times.append(None)
    return [times[bisect_left(lengths, end)] for end in lines.ends] if lengths else []


def search(folder: Path, path: Path, text: str, at: int = 0, mask: Mask = str) -> Hits:
    """Find lines that contain a text, in any case, from an offset on; one call looks through a bounded piece."""
    with _opened(folder, path) as (file, size):
        return _search(file, size, text, at, mask)


def _search(file: int, size: int, text: str, at: int, mask: Mask) -> Hits:
    until = at + SEARCHED
    needle = text.encode("utf-8", "replace").lower()
    hits: list[tuple[int, str]] = []
    while at < min(size, until) and len(hits) < MOST_HITS:
        data = os.pread(file, BLOCK, at)
        if not data:
            break
        end = data.rfind(b"\n") + 1 or len(data)
        if at + len(data) >= size:
            end = len(data)
        lower, place = data.lower(), 0  # re.IGNORECASE would take four times as long
        while len(hits) < MOST_HITS and (hit := lower.find(needle, place, end)) >= 0:
            start = data.rfind(b"\n", 0, hit) + 1
            place = data.find(b"\n", hit, end) + 1 or end
            hits.append((at + start, shown_line(data[start : place - (data[place - 1 : place] == b"\n")], mask)))
        at += place if len(hits) >= MOST_HITS else end
    return Hits(tuple(hits), at if at < size else None, size)
