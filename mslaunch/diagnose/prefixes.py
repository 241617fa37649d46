"""What launchers and loggers put before the lines of a process: `[rank1]: `, `(Worker pid=7) ERROR … `, `n1: `."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PREFIX = re.compile(
    rb"(?:\[rank(?P<torch>\d{1,6})\]: ?"  # PyTorch
    rb"|\[\d{1,3},(?P<mpi>\d{1,6})\]<std(?:err|out)>: ?"  # mpirun --tag-output
    rb"|(?P<srun>\d{1,6}): "  # srun --label
    rb"|[\w.-]{1,60}: "  # pdsh, DeepSpeed
    rb"|(?:\([\w ]{1,60}\bpid=\d{1,10}(?:, ip=[\w.:]{2,60})?\) |\[[\w-]{1,40}\] )?"  # Ray, vLLM
    rb"(?:ERROR \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}:\d{1,6}\] )?)"
)
_CLOCK = re.compile(rb"\d\d:\d\d:\d\d")
_MOST_LINES = 1000  # of one exception
_MOST_OTHERS = 100  # lines of other processes in a row between two lines of an exception


@dataclass(frozen=True, slots=True)
class Prefix:
    """What stands before the lines of one process."""

    size: int
    key: bytes
    """The same for all lines of the process: the time is left out."""
    rank: int | None


def read_prefix(line: bytes) -> Prefix | None:
    """Return what was put before a line; None where nothing was."""
    found = _PREFIX.match(line)
    if not found or not found.end():
        return None
    rank = found["torch"] or found["mpi"] or found["srun"]
    return Prefix(found.end(), _CLOCK.sub(b"", found[0]), None if rank is None else int(rank))


def lines_of_process(lines: Sequence[bytes], at: int, prefix: Prefix) -> list[tuple[int, bytes]]:
    """Return the lines from one on that have its prefix, without it, and where they stand."""
    found: list[tuple[int, bytes]] = []
    others = 0
    for number in range(at, len(lines)):
        line = lines[number]
        same = read_prefix(line)
        if same is not None and same.key == prefix.key:
            found.append((number, line[same.size :]))
            others = 0
        elif same is None or others == _MOST_OTHERS:
            break
        else:
            others += 1
        if len(found) == _MOST_LINES:
            break
    return found
