"""Exceptions in a log: where one begins, where it ends, and its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mslaunch.diagnose.stacks import OUR_FRAMES, readable
from mslaunch.shared.headlines import MOST_LINES, headline, is_bare

_LABELS = (
    rb"\[rank(?P<torch>\d{1,6})\]: ?",  # PyTorch
    rb"\[\d{1,3},(?P<mpi>\d{1,6})\]<std(?:err|out)>: ?",  # mpirun --tag-output
    rb"\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (?:std(?:out|err) [FP] )?",  # containers
    rb"\([\w ]{1,60}\bpid=\d{1,10}(?:, ip=[\w.:]{2,60})?\) ",  # Ray, vLLM
    rb"(?:\[[\w-]{1,40}\] )?ERROR \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] ",  # vLLM
)
_WORDS = (
    rb"(?P<srun>\d{1,6}): ",  # srun --label
    rb"[\w.-]{1,60}: ",  # pdsh, DeepSpeed
)
"""Labels that may as well be the beginning of a message: `RuntimeError: `, `EI0006: `."""
_LABEL = re.compile(b"|".join(_LABELS))
_ANY = re.compile(b"|".join((*_LABELS, *_WORDS)))
_TIME = re.compile(rb"%b|\d\d:\d\d:\d\d" % _LABELS[2])  # it tells no process
_MOST_LABELS = 3
_MOST_OTHERS = 100  # lines of other processes in a row between two lines of an exception


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before the lines of one process."""

    size: int
    labels: int
    key: bytes
    """The same for all lines of the process, without times; empty where it does not tell one process from another."""
    rank: int | None


def read_prefix(line: bytes, most: int = _MOST_LABELS) -> Prefix | None:
    """Return the labels before a line; None where there are none."""
    size = labels = 0
    rank = None
    while labels < most and (label := _ANY.match(line, size)):
        size = label.end()
        labels += 1
        rank = label["torch"] or label["mpi"] or label["srun"] or rank
    return Prefix(size, labels, _TIME.sub(b"", line[:size]), None if rank is None else int(rank)) if size else None


def label_size(line: bytes) -> int:
    """Return how much of a line is a label for certain, so that its level stands behind it."""
    size = labels = 0
    while labels < _MOST_LABELS and (label := _LABEL.match(line, size)):
        size = label.end()
        labels += 1
    return size


def lines_of_process(lines: Sequence[bytes], at: int, prefix: Prefix, most: int) -> list[tuple[int, bytes]]:
    """Return some lines from one on that have its prefix, without it, and where they stand."""
    own: list[tuple[int, bytes]] = []
    others = 0
    for number in range(at, len(lines)):
        line = lines[number]
        same = read_prefix(line, prefix.labels)
        if same is not None and same.key == prefix.key:
            own.append((number, line[same.size :]))
            others = 0
        elif same is None or others == _MOST_OTHERS:
            break
        else:
            others += 1
        if len(own) == most:
            break
    return own


_TRACEBACK = b"Traceback (most recent call last)"
_FATAL = b"Fatal Python error: "
_GROUP = b"  + Exception Group Traceback (most recent call last)"
_FRAME = b'  File "'
_SOURCE = b"    "
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_SYNTAX = re.compile(rb"(SyntaxError|IndentationError|TabError): ")
_GROUP_SUMMARY = re.compile(r"  \| \S")
_LINES_READ = (16, 128, 1000)  # of an exception with a label before its lines
_TO_CHAIN, _TO_TRACEBACK = 3, 4  # how many lines below the end of an exception the next one of its chain may begin


@dataclass(frozen=True, slots=True)
class End:
    """Where an exception ends: the index of the line after it."""

    line: int
    is_open: bool
    """Whether lines that are not there yet may belong to it."""
    block: tuple[bytes, ...] = ()
    """Its lines, without what a launcher put before them."""
    writer: bytes = b""
    """What a launcher put before them, which tells the processes of a log apart."""
    rank: int | None = None
    """The rank that a launcher put before them."""
    below: tuple[bytes, ...] = ()
    """The lines below it, where its last line says nothing by itself."""


def visible(line: bytes) -> bytes:
    """Return what a terminal would show of a line that a progress bar has written over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def find_exception(lines: Sequence[bytes], at: int, before: bytes) -> End | None:
    """Return the exception that starts at a line, or None where none does; `before` is the line above."""
    if (end := _end(lines, at, before)) is not None:
        return _with_below(replace(end, block=tuple(lines[at : end.line])), lines, end.line)
    line = visible(lines[at])
    prefix = read_prefix(line[: line.find(_TRACEBACK)])
    if prefix is None or not line.startswith(_TRACEBACK, prefix.size):
        return None
    return _end_of_labelled(lines, at, line[prefix.size :], prefix)


def _end_of_labelled(lines: Sequence[bytes], at: int, first: bytes, prefix: Prefix) -> End:
    """Return where an exception with a label before its lines ends; most are short, so that few lines are read."""
    for most in _LINES_READ:
        own = lines_of_process(lines, at + 1, prefix, most)
        texts = [first, *(text for _, text in own)]
        end = _end_of_chain(texts, 0)
        if not end.is_open or len(own) < most:
            break
    places = [at, *(number for number, _ in own)]
    labelled = End(places[end.line - 1] + 1, end.is_open, tuple(texts[: end.line]), prefix.key, prefix.rank)
    labelled = _with_below(labelled, texts, end.line)
    return replace(labelled, is_open=labelled.is_open and places[-1] + 1 == len(lines))


def _with_below(end: End, lines: Sequence[bytes], at: int) -> End:
    """Add the lines below an exception whose message begins with a line that says nothing."""
    last = end.block[-1].decode("utf-8", "replace") if end.block else ""
    if last.startswith((" ", "\t")) or not is_bare(last):
        return end
    return replace(end, below=tuple(lines[at : at + MOST_LINES]), is_open=end.is_open or at + MOST_LINES > len(lines))


def _end(lines: Sequence[bytes], at: int, before: bytes) -> End | None:
    line = visible(lines[at])
    if line.startswith(_TRACEBACK):
        return _end_of_chain(lines, at)
    if line.startswith(_FATAL):
        end = at + 1
        while end < len(lines) and (lines[end].startswith((b" ", b"Current thread", b"Thread 0x")) or not lines[end]):
            end += 1
        return End(end, end == len(lines))
    if line.startswith(_GROUP):
        end = _skip_indented(lines, at + 1)
        return End(end, end == len(lines))
    if line.startswith(_FRAME) and not before.startswith((b" ", b"Traceback")):
        end = _skip_indented(lines, at)
        if end == len(lines):
            return End(end, is_open=True)
        return End(end + 1, is_open=False) if _SYNTAX.match(lines[end]) else None
    return None


def is_source_line(line: bytes) -> bool:
    """Tell whether a line of a traceback is one of the source, whose texts tell what may go wrong, not what did."""
    prefix = None if line.startswith(_SOURCE) else read_prefix(line)
    return line.startswith(_SOURCE, prefix.size if prefix else 0)


def _end_of_chain(lines: Sequence[bytes], at: int) -> End:
    while True:
        end = _skip_indented(lines, at + 1) + 1
        following = next(
            (i for i in range(end, min(end + _TO_CHAIN, len(lines))) if lines[i].startswith(_CHAINED)), None
        )
        if following is None:
            return End(min(end, len(lines)), end + _TO_CHAIN > len(lines))
        below = range(following, min(following + _TO_TRACEBACK, len(lines)))
        start = next((i for i in below if b"Traceback" in lines[i]), None)
        if start is None:
            return End(min(end, len(lines)), following + _TO_TRACEBACK > len(lines))
        at = start


def _skip_indented(lines: Sequence[bytes], at: int) -> int:
    while at < len(lines) and lines[at].startswith((b" ", b"\t")):
        at += 1
    return at


def exception_text(lines: Sequence[bytes], below: Sequence[bytes] = ()) -> tuple[str, str]:
    """Return the summary and the text of an exception, without the launcher's own frames."""
    text = [line.decode("utf-8", "replace").rstrip("\r") for line in (visible(lines[0]), *lines[1:])]
    block = [line for line in text if not any(mark in line for mark in OUR_FRAMES)] or text
    summary = block[-1]
    if lines[0].startswith(_FATAL):
        block = readable("\n".join(block)).split("\n")
        summary = block[0]
    if visible(lines[0]).startswith(_GROUP):
        summary = next((line[4:] for line in block if _GROUP_SUMMARY.match(line)), summary)
    message = [summary, *(line.decode("utf-8", "replace") for line in below)]
    return headline("\n".join(message)), "\n".join(block)
