"""The stretch of a log that matters: the lines that told something, with what stands around them, its head and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from mslaunch.diagnose.reading import Read, left_out
from mslaunch.diagnose.scan import BLOCK

_AROUND = 10
_HEAD, _END = 30, 200
_LONGEST_EXCEPTION = 400
_LONGEST_LINE = 1 << 13
# What is found without a line number: a peer that is gone, and the last step.
_ALWAYS = (b"Client connected end of file! Peer",)
_STEP = (b"poch:", b"POCH:")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A line of a log; the smaller `worth` is, the longer it is kept."""

    number: int
    text: bytes
    worth: int


def excerpt(read: Read, budget: int, mask: Callable[[str], str]) -> Iterator[bytes]:
    """Return the pieces of an excerpt of at most so many bytes; a line stands for those that were left out."""
    total = read.findings.lines
    with read.source.open() as file:
        kept = _within(list(_collect(file, _worths(read), total, mask)), budget)
    at = 0
    for line in kept:
        if line.number > at + 1:
            yield left_out(line.number - at - 1)
        yield line.text + b"\n"
        at = line.number
    if total > at:
        yield left_out(total - at)


def _worths(read: Read) -> dict[int, int]:
    """Return how much each line that told something is worth, and those around it."""
    worths: dict[int, int] = {}

    def want(first: int, last: int, worth: int) -> None:
        for number in range(max(1, first), last + 1):
            worths[number] = min(worth, worths.get(number, worth))

    found = read.findings
    seen: set[str] = set()
    for hit in found.hits:
        want(hit.line, hit.line, 1 if hit.match.pattern.id in seen else 0)
        want(hit.line - _AROUND, hit.line + _AROUND, 3)
        seen.add(hit.match.pattern.id)
    for fact in found.facts:
        want(fact.line, fact.line, 0)
        want(fact.line - _AROUND, fact.line + _AROUND, 4)
    for raised in found.raised:
        want(raised.line, min(raised.end, raised.line + _LONGEST_EXCEPTION), 1)
        want(raised.end - 3, raised.end, 0)
        want(raised.line - _AROUND, raised.line, 3)
    want(found.lines - _END, found.lines, 4)
    want(found.lines - 20, found.lines, 2)
    want(1, _HEAD, 4)
    return worths


def _collect(file: IO[bytes], worths: dict[int, int], total: int, mask: Callable[[str], str]) -> Iterator[_Kept]:
    """Return the lines that are wanted, and those that are always; blocks without such are not taken apart."""
    wanted = sorted(worths)
    at = done = 0
    rest = b""
    step: _Kept | None = None
    while block := file.read(BLOCK):
        data = rest + block
        end = data.rfind(b"\n") + 1
        if not end and len(data) < 4 * BLOCK:
            rest = data
            continue
        whole, rest = (data[:end], data[end:]) if end else (data, b"")
        count = whole.count(b"\n")
        while at < len(wanted) and wanted[at] <= done:
            at += 1
        has_wanted = at < len(wanted) and wanted[at] <= done + max(count, 1)
        if has_wanted or any(text in whole for text in _ALWAYS):
            yield from _pick(whole.split(b"\n"), done, worths, mask)
        step = _last_step(whole, done, mask) or step
        done += count
    if rest:
        yield from _pick([rest], done, worths, mask)
    if step is not None and step.number not in worths and step.number <= total:
        yield step


def _pick(lines: list[bytes], done: int, worths: dict[int, int], mask: Callable[[str], str]) -> Iterator[_Kept]:
    for number, line in enumerate(lines, done + 1):
        worth = worths.get(number)
        if worth is None and any(text in line for text in _ALWAYS):
            worth = 1
        if worth is not None and (line or number < done + len(lines)):
            yield _Kept(number, _masked(line, mask), worth)


def _masked(line: bytes, mask: Callable[[str], str]) -> bytes:
    """Mask a line before it is cut, since half a secret is not known."""
    masked = mask(line[: 8 * _LONGEST_LINE].decode("utf-8", "replace"))
    return masked.encode("utf-8", "replace")[:_LONGEST_LINE]


def _last_step(whole: bytes, done: int, mask: Callable[[str], str]) -> _Kept | None:
    at = max(whole.rfind(text) for text in _STEP)
    if at < 0:
        return None
    start = whole.rfind(b"\n", 0, at) + 1
    end = whole.find(b"\n", at)
    line = whole[start : end if end >= 0 else len(whole)]
    return _Kept(done + whole.count(b"\n", 0, start) + 1, _masked(line, mask), 0)


def _within(lines: list[_Kept], budget: int) -> list[_Kept]:
    """Return as many of the lines as fit, those that are worth most first, in the order of the log."""
    kept: dict[int, _Kept] = {}
    for line in sorted(lines, key=lambda line: (line.worth, line.number)):
        budget -= len(line.text) + 40
        if budget < 0:
            break
        kept[line.number] = line
    return [kept[number] for number in sorted(kept)]
