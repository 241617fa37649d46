"""A bundle: one zip file with everything that a verdict rests on, without secrets, to be read on another machine."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from mslaunch.diagnose.logs.reading import Read, left_out
from mslaunch.diagnose.logs.scan import BLOCK, EPOCH_MARKS
from mslaunch.diagnose.logs.sources import BROKEN, MEMBERS, LogFile, members_of
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.masking.documents import TELLING, find_secrets, mask_document, mask_values
from mslaunch.masking.free_text import mask_text
from mslaunch.shared import layout

_AROUND = 10
_HEAD, _END = 30, 200
_LONGEST_EXCEPTION = 400
_LONGEST_LINE = 1 << 13


@dataclass(frozen=True, slots=True)
class _ExcerptLine:
    """A line of a log; the smaller `worth` is, the longer it is kept."""

    number: int
    text: bytes
    worth: int


def excerpt(read: Read, budget: int, mask: Callable[[str], str]) -> Iterator[bytes]:
    """Return the pieces of an excerpt of at most so many bytes; a line stands for those that were left out."""
    total = read.findings.lines
    with read.source.open() as file:
        lines = _within(list(_collect(file, _worths(read), total, mask)), budget)
    at = 0
    for line in lines:
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

    findings = read.findings
    seen: set[str] = set()
    for hit in findings.hits:
        want(hit.line, hit.line, 1 if hit.match.pattern.id in seen else 0)
        want(hit.line - _AROUND, hit.line + _AROUND, 3)
        seen.add(hit.match.pattern.id)
    for fact in findings.facts:
        want(fact.line, fact.line, 0)
        want(fact.line - _AROUND, fact.line + _AROUND, 4)
    for raised in findings.raised:
        want(raised.line, min(raised.end, raised.line + _LONGEST_EXCEPTION), 1)
        want(raised.end - 3, raised.end, 0)
        want(raised.line - _AROUND, raised.line, 3)
    want(findings.lines - _END, findings.lines, 4)
    want(findings.lines - 20, findings.lines, 2)
    want(1, _HEAD, 4)
    return worths


def _collect(file: IO[bytes], worths: dict[int, int], total: int, mask: Callable[[str], str]) -> Iterator[_ExcerptLine]:
    """Return the lines that are wanted, and the last step's; blocks without such lines are not taken apart."""
    numbers = sorted(worths)
    at = done = 0
    rest = b""
    step: _ExcerptLine | None = None
    while block := file.read(BLOCK):
        data = rest + block
        end = data.rfind(b"\n") + 1
        if not end and len(data) < 4 * BLOCK:
            rest = data
            continue
        whole, rest = (data[:end], data[end:]) if end else (data, b"")
        count = whole.count(b"\n")
        while at < len(numbers) and numbers[at] <= done:
            at += 1
        if at < len(numbers) and numbers[at] <= done + max(count, 1):
            yield from _pick(whole.split(b"\n"), done, worths, mask)
        step = _last_step(whole, done, mask) or step
        done += count
    if rest:
        yield from _pick([rest], done, worths, mask)
    if step is not None and step.number not in worths and step.number <= total:
        yield step


def _pick(lines: list[bytes], done: int, worths: dict[int, int], mask: Callable[[str], str]) -> Iterator[_ExcerptLine]:
    for number, line in enumerate(lines, done + 1):
        if number in worths and (line or number < done + len(lines)):
            yield _ExcerptLine(number, _masked(line, mask), worths[number])


def _masked(line: bytes, mask: Callable[[str], str]) -> bytes:
    """Mask a line before it is cut, since half a secret is not known."""
    masked = mask(line[: 8 * _LONGEST_LINE].decode("utf-8", "replace"))
    return masked.encode("utf-8", "replace")[:_LONGEST_LINE]


def _last_step(whole: bytes, done: int, mask: Callable[[str], str]) -> _ExcerptLine | None:
    at = max(whole.rfind(mark) for mark in EPOCH_MARKS)
    if at < 0:
        return None
    start = whole.rfind(b"\n", 0, at) + 1
    end = whole.find(b"\n", at)
    line = whole[start : end if end >= 0 else len(whole)]
    return _ExcerptLine(done + whole.count(b"\n", 0, start) + 1, _masked(line, mask), 0)


def _within(lines: list[_ExcerptLine], budget: int) -> list[_ExcerptLine]:
    """Return as many of the lines as fit, those that are worth most first, in the order of the log."""
    chosen: dict[int, _ExcerptLine] = {}
    for line in sorted(lines, key=lambda line: (line.worth, line.number)):
        budget -= len(line.text) + 40
        if budget < 0:
            break
        chosen[line.number] = line
    return [chosen[number] for number in sorted(chosen)]


LARGEST = 20_000_000
ABOUT = "bundle.json"
_FULL = 19_000_000  # nothing more is added
_ALL_EXCERPTS = 96_000_000  # before they are packed
_LONGEST_EXCERPT, _SHORTEST_EXCERPT = 2_000_000, 16_000
_LARGEST_DOCUMENT = 2_000_000
_LARGEST_ABOUT = 64 << 20
_DOCUMENTS = {
    *(layout.PLAN, layout.RECORD, layout.CONFIG, layout.CONFIG_JSON, layout.EVENTS, layout.LAUNCHER_LOG),
    *(layout.ERROR, layout.EXIT, layout.STACK, layout.ENV_LOG),
    *(log.rpartition("/")[2] for log in (layout.SETUP_LOG, layout.SYNC_LOG)),
}
_README = """A bundle of mslaunch: `mslaunch diagnose FILE.zip` reads it.

bundle.json   verdict, record, versions, environment and host, secrets masked
logs/         of every log the lines that matter; a line says how many were left out
"""


def write_bundle(
    target: Path,
    about: Mapping[str, Any],
    sources: Sequence[LogFile],
    reads: Sequence[Read],
    environment: Mapping[str, str],
) -> list[str]:
    """Write a bundle below 20 MB; return what had to be left out. Secrets of the environment are masked in it."""
    telling = (source for source in sources if source.name.rpartition("/")[2] in TELLING)
    texts = ((source.name, source.read_text(_LARGEST_DOCUMENT)) for source in telling)
    secrets = find_secrets(((name, text) for name, text in texts if text is not None), environment)
    mask = partial(mask_text, secrets=secrets)
    omitted: list[str] = []
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README.txt", _README)
        archive.writestr(ABOUT, json.dumps(mask_values(about, secrets), indent=1))
        _write_excerpts(archive, reads, mask, omitted)
        _write_documents(archive, sources, {read.source.name for read in reads}, secrets, omitted)
    return omitted


def _write_excerpts(archive: zipfile.ZipFile, reads: Sequence[Read], mask: Any, omitted: list[str]) -> None:
    """Write the logs that tell most first."""
    share = max(_SHORTEST_EXCERPT, min(_LONGEST_EXCERPT, _ALL_EXCERPTS // max(1, len(reads))))
    order = sorted(reads, key=lambda read: not (read.findings.hits or read.findings.facts or read.findings.raised))
    for read in order:
        if _size(archive) > _FULL - share // 2:
            share = _SHORTEST_EXCERPT
        if _size(archive) > _FULL:
            omitted.append(read.source.name)
            continue
        try:
            text = b"".join(excerpt(read, share, mask))
        except BROKEN:
            omitted.append(read.source.name)
            continue
        archive.writestr(MEMBERS + read.source.name.removesuffix(".gz"), text)


def _write_documents(
    archive: zipfile.ZipFile,
    sources: Sequence[LogFile],
    written: set[str],
    secrets: Collection[str],
    omitted: list[str],
) -> None:
    """Write the small files of a run, and rank tables."""
    for source in sources:
        *folders, name = source.name.split("/")
        is_table = name.endswith(".json") and source.size <= _LARGEST_DOCUMENT
        if source.name in written or layout.CODE in folders or not (name in _DOCUMENTS or is_table):
            continue
        text = source.read_text(_LARGEST_DOCUMENT) if _size(archive) < _FULL else None
        if text is None:
            omitted.append(source.name)
        elif name in _DOCUMENTS or '"server_list"' in text:
            archive.writestr(MEMBERS + source.name, mask_document(source.name, text, secrets))


def _size(archive: zipfile.ZipFile) -> int:
    return 0 if archive.fp is None else archive.fp.tell()


def read_bundle(path: Path) -> tuple[dict[str, Any], list[LogFile]]:
    """Return what a bundle says of itself, and its logs; what is wrong with it is Unreadable."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(ABOUT) as file:
            data = file.read(_LARGEST_ABOUT + 1)
        if len(data) > _LARGEST_ABOUT:
            raise Unreadable(f"its {ABOUT} is larger than {_LARGEST_ABOUT >> 20} MB")
        about = parse_json(data.decode("utf-8", "replace"))
        sources = members_of(path)
    except Unreadable:
        raise
    except BROKEN as error:
        raise Unreadable(str(error)) from None
    if not isinstance(about, dict):
        raise Unreadable(f"its {ABOUT} is not a JSON object")
    return about, sources
