"""What launchers and loggers put before the lines of a process: `[rank1]: `, `(Worker pid=7) ERROR … `, `n1: `."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    """How many labels it is made of."""
    key: bytes
    """The same for all lines of the process, without times; empty where it does not tell one process from another."""
    rank: int | None


def read_prefix(line: bytes, most: int = _MOST_LABELS) -> Prefix | None:
    """Return the labels before a line; None where there are none."""
    size = labels = 0
    rank = None
    while labels < most and (found := _ANY.match(line, size)):
        size = found.end()
        labels += 1
        rank = found["torch"] or found["mpi"] or found["srun"] or rank
    return Prefix(size, labels, _TIME.sub(b"", line[:size]), None if rank is None else int(rank)) if size else None


def label_size(line: bytes) -> int:
    """Return how much of a line is a label for certain, so that its level stands behind it."""
    size = labels = 0
    while labels < _MOST_LABELS and (found := _LABEL.match(line, size)):
        size = found.end()
        labels += 1
    return size


def lines_of_process(lines: Sequence[bytes], at: int, prefix: Prefix, most: int) -> list[tuple[int, bytes]]:
    """Return some lines from one on that have its prefix, without it, and where they stand."""
    found: list[tuple[int, bytes]] = []
    others = 0
    for number in range(at, len(lines)):
        line = lines[number]
        same = read_prefix(line, prefix.labels)
        if same is not None and same.key == prefix.key:
            found.append((number, line[same.size :]))
            others = 0
        elif same is None or others == _MOST_OTHERS:
            break
        else:
            others += 1
        if len(found) == most:
            break
    return found
