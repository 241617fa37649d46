"""Reading many logs: each once, several at a time, with bounded memory; what cannot be read is a note."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import IO

from mslaunch.diagnose.logs.scan import BLOCK, Findings, Scanner
from mslaunch.diagnose.logs.sources import BROKEN, LogFile

Progress = Callable[[int, int], None]
"""Gets how many bytes have been read, of how many."""
_WORTH_PROCESSES = 64 << 20  # bytes in all; starting processes costs as much as reading some megabytes
_MOST_PROCESSES = 4  # each takes some 40 MB
_LEFT_OUT = re.compile(rb"(?m)^\[mslaunch: (\d{1,12}) lines left out\]\n")


@dataclass(frozen=True, slots=True)
class Read:
    """What one log tells, or why it could not be read."""

    source: LogFile
    findings: Findings
    problem: str | None = None


def left_out(lines: int) -> bytes:
    """Return the line that stands in a bundle for lines that were left out."""
    return b"[mslaunch: %d lines left out]\n" % lines


def read_logs(sources: Sequence[LogFile], progress: Progress | None = None) -> list[Read]:
    """Read logs, in processes where that is worth it; the answers are in the order of the logs."""
    tell = progress or _tell_nobody
    total = sum(source.size for source in sources)
    workers = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(sources))
    if workers > 1 and total >= _WORTH_PROCESSES:
        with suppress(BrokenProcessPool):  # somebody ended one of them, the kernel for example
            return _in_processes(sources, workers, tell, total)
    reads: list[Read] = []
    done = 0
    for source in sources:
        reads.append(read_log(source, lambda size, before=done: tell(before + size, total)))  # type: ignore[misc]
        done += source.size
    return reads


def _tell_nobody(_done: int, _total: int) -> None:
    """Where nobody wants to know."""


def _in_processes(sources: Sequence[LogFile], workers: int, tell: Progress, total: int) -> list[Read]:
    order = sorted(sources, key=lambda source: -source.size)  # no large one is left for the end
    reads: dict[LogFile, Read] = {}
    done = 0
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        for source, read in zip(order, pool.map(read_log, order), strict=True):
            reads[source] = read
            done += source.size
            tell(done, total)
    return [reads[source] for source in sources]


def read_log(source: LogFile, tell: Callable[[int], None] | None = None) -> Read:
    """Read one log; of one that breaks off, what came before the break counts."""
    scanner = Scanner(log=source.shown)
    problem = None
    try:
        with source.open() as file:
            read = 0
            while block := file.read(BLOCK):
                read += len(block)
                if source.bundle:
                    _feed(scanner, block, file)
                else:
                    scanner.feed(block)
                if tell is not None:
                    tell(read)
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        problem = f"{source.shown}: not read to its end: {reason}"
    return Read(source, scanner.finish(), problem)


def _feed(scanner: Scanner, block: bytes, file: IO[bytes]) -> None:
    """Scan a block of a bundle's log, in which lines may be left out."""
    if not block.endswith(b"\n"):
        block += file.readline(BLOCK)
    at = 0
    for gap in _LEFT_OUT.finditer(block):
        scanner.feed(block[at : gap.start()])
        scanner.skip(int(gap[1]))
        at = gap.end()
    scanner.feed(block[at:])
