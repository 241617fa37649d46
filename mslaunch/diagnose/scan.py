"""Reading one log: exceptions, known patterns, the last sign of life."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mslaunch.diagnose.patterns import Match, match_line
from mslaunch.diagnose.stacks import OUR_FRAMES

READ_LIMIT = 8 << 20  # what went wrong stands at the end of a log
LONGEST_LINE = 1 << 14  # what MindSpore prints of a failure stands at the beginning of a line
_TIME = re.compile(r"(\d{4}-\d\d-\d\d-\d\d:\d\d:\d\d)\.(\d{3})\.(\d{3})")
_STEP = re.compile(r"epoch:\s*(\d{1,18}),?\s+step:\s*(\d{1,18})(?!\d)", re.IGNORECASE)
_PEER_GONE = re.compile(r"Client connected end of file! Peer \w+ ip: \S+, port: (\d{1,5})(?!\d)")
_SYNTAX = re.compile(r"(SyntaxError|IndentationError|TabError): ")
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, slots=True)
class Raised:
    """An uncaught exception, or a fatal signal with the stack that Python saw."""

    line: int
    summary: str
    traceback: str
    time: float | None


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


def scan_file(path: Path, limit: int = READ_LIMIT) -> Findings:
    """Scan the last megabytes of a log; line numbers are those of the whole file."""
    skipped = 0
    with path.open("rb") as file:
        rest = max(0, file.seek(0, 2) - limit)
        file.seek(0)
        while rest > 0:
            chunk = file.read(min(rest, 1 << 20))
            skipped += chunk.count(b"\n")
            rest -= len(chunk)
        text = file.read().decode("utf-8", "replace")
    return scan(text.splitlines(), skipped)


def scan(lines: Sequence[str], skipped: int = 0) -> Findings:
    """Find exceptions and patterns in the lines of one log."""
    raised = tuple(_exceptions(lines, skipped))
    hits: list[Hit] = []
    gone: list[int] = []
    time: float | None = None
    step = (0, 0)
    for number, line in enumerate(lines, skipped + 1):
        time = _time(line) or time
        if found := match_line(line[:LONGEST_LINE]):
            hits.append(Hit(number, found, time))
        if progress := _STEP.search(line):
            step = max(step, (int(progress[1]), int(progress[2])))
        if peer := _PEER_GONE.search(line):
            gone.append(int(peer[1]))
    return Findings(raised, tuple(hits), time, step, tuple(gone), skipped + len(lines))


def _time(line: str) -> float | None:
    found = _TIME.search(line)
    if not found:
        return None
    try:
        return datetime.strptime(f"{found[1]}.{found[2]}{found[3]}", "%Y-%m-%d-%H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError):  # no such day, or one before the first that can be counted
        return None


def _exceptions(lines: Sequence[str], skipped: int) -> Iterator[Raised]:
    """Yield each uncaught exception once, with the chain that led to it."""
    at = 0
    time: float | None = None
    while at < len(lines):
        line = lines[at]
        time = _time(line) or time
        end = _end_of_exception(lines, at)
        if end is None:
            at += 1
            continue
        block = [line for line in lines[at:end] if not any(mark in line for mark in OUR_FRAMES)]
        summary = block[0] if block[0].startswith("Fatal Python error") else block[-1]
        yield Raised(skipped + at + 1, summary.strip(), "\n".join(block), time)
        at = end


def _end_of_exception(lines: Sequence[str], at: int) -> int | None:
    """Return where the exception that starts here ends, or None where none does."""
    line = lines[at]
    if line.startswith(_TRACEBACK):
        return _end_of_chain(lines, at)
    if line.startswith("Fatal Python error: "):
        end = at + 1
        while end < len(lines) and (lines[end].startswith((" ", "Current thread", "Thread 0x")) or not lines[end]):
            end += 1
        return end
    if line.startswith('  File "') and not (at and lines[at - 1].startswith((" ", "Traceback"))):
        end = _skip_indented(lines, at)
        if end < len(lines) and _SYNTAX.match(lines[end]):
            return end + 1
    return None


def _end_of_chain(lines: Sequence[str], at: int) -> int:
    """Return where a traceback ends, with those that follow it in its chain."""
    while True:
        end = _skip_indented(lines, at + 1) + 1
        following = next((i for i in range(end, min(end + 3, len(lines))) if lines[i].startswith(_CHAINED)), None)
        if following is None:
            return min(end, len(lines))
        near = range(following, min(following + 4, len(lines)))
        start = next((i for i in near if lines[i].startswith(_TRACEBACK)), None)
        if start is None:
            return min(end, len(lines))
        at = start


def _skip_indented(lines: Sequence[str], at: int) -> int:
    while at < len(lines) and lines[at].startswith((" ", "\t")):
        at += 1
    return at
