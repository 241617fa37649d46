"""The end of a failed rank's log, without what its verdict holds already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mslaunch.diagnose.patterns.pattern import is_healthy_noise
from mslaunch.diagnose.stacks import OUR_FRAMES, readable
from mslaunch.diagnose.verdict import Verdict

TAIL = 1 << 16
_HEAD = 3  # lines by which a traceback is found in the log: the first frame tells it from others
# What MindSpore writes while it is taken apart, and Python after a crash: true, and of no use here.
_NOISE = re.compile("|".join((r"Event base dispatch success|^Extension modules: ", *map(re.escape, OUR_FRAMES))))


def other_lines(verdict: Verdict) -> list[str]:
    """Return the last lines of a verdict's log, without its traceback, its summary and what healthy runs write too."""
    lines, is_whole = read_tail(Path(verdict.log or ""))
    traceback = _visible_lines((verdict.traceback or "").rstrip())
    in_verdict = {*traceback, *_visible_lines(verdict.summary)}
    others = leave_out(lines, traceback, is_whole)
    others = [line for line in others if line not in in_verdict and readable(line) not in in_verdict]
    return [line for line in others if not (_NOISE.search(line) or is_healthy_noise(line))]


def leave_out(lines: Sequence[str], traceback: Sequence[str], is_whole: bool) -> list[str]:
    """Return the lines of a log without a traceback, of which the verdict may hold the beginning and the end only."""
    last = traceback[-1] if traceback else ""
    end = next((at for at in range(len(lines) - 1, -1, -1) if last and lines[at].endswith(last)), None)
    if end is None:
        return list(lines)
    head = list(traceback[:_HEAD])
    starts = (at for at in range(end, -1, -1) if list(lines[at : at + len(head)]) == head)
    start = next(starts, end if is_whole else 0)
    return [*lines[:start], *lines[end + 1 :]]


def read_tail(path: Path) -> tuple[list[str], bool]:
    """Return the last lines of a file of any size, and whether they are all; a record may name a device or a pipe."""
    try:
        if not path.is_file():
            return [], True
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - TAIL)
            file.seek(start)
            tail = file.read(TAIL)
    except (OSError, ValueError):
        return [], True
    return _visible_lines(tail.decode("utf-8", "replace").removesuffix("\n")), start == 0


def _visible_lines(text: str) -> list[str]:
    """Return lines as a terminal would show those that a progress bar has written over."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")] if text else []
