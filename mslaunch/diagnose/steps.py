"""Steps of training in a log: the last one of a block, and how many of its lines tell one."""

from __future__ import annotations

import re

Step = tuple[int, int]
"""Epoch and step."""
NO_STEP: Step = (0, 0)
_MARKS = (b"poch:", b"POCH:")
_TRIED = 64  # lines of a block, from its end, that name an epoch
_STEP = re.compile(
    rb"epoch:\s*(\d{1,18}),?\s+step:\s*(\d{1,18})(?!\d)|epoch:\[\s*(\d{1,18})/\s*\d{1,18}\], step:\[\s*(\d{1,18})/",
    re.IGNORECASE,
)
WENT_ON = 3
"""Steps after an error that show that it was handled; ranks that share a log print one or two, then they wait."""


def last_step(data: bytes, start: int, end: int) -> Step:
    """Return the last step that some lines of a block tell of."""
    found = NO_STEP
    for mark in _MARKS:
        at = data.rfind(mark, start, end)
        for _ in range(_TRIED):
            if at < 0:
                break
            line_end = data.find(b"\n", at)
            told = _STEP.search(data, max(0, at - 1), line_end if line_end >= 0 else len(data))
            if told:
                found = max(found, (int(told[1] or told[3]), int(told[2] or told[4])))
                break
            at = data.rfind(mark, start, at)
    return found


def step_lines(data: bytes, start: int, end: int) -> int:
    """Return how many times some lines of a block name an epoch."""
    return sum(data.count(mark, start, end) for mark in _MARKS)
