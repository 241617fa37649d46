"""The parts of a status line, for a terminal of any width: what does not fit is left out whole. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mslaunch.metrics.progress import TIME_LEFT
from mslaunch.words import display_width

LEFT_OUT = (*map(re.compile, (" steps/s$", "/step$", " joined$", " ranks up$", "^loss ")), TIME_LEFT)
"""Which parts are left out, the least important first; all others stay."""


def fit_parts(parts: Sequence[str], columns: int, between: str = " | ") -> list[str]:
    """Return the parts that fit into so many columns."""
    kept = list(parts)
    for pattern in LEFT_OUT:
        if display_width(between.join(kept)) <= columns:
            break
        kept = [part for part in kept if not pattern.search(part)]
    return kept
