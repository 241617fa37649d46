"""The live lines at the bottom of a terminal: texts in, what the terminal is sent out. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mslaunch.metrics.progress import TIME_LEFT
from mslaunch.text import display_width, shorten

ERASE_BELOW = "\x1b[J"
ERASE_REST = "\x1b[K"


class LiveLines:
    """Some lines that are redrawn in place, below everything else that is written."""

    def __init__(self) -> None:
        self._drawn: tuple[str, ...] = ()

    def erase(self, columns: int) -> str:
        """Return what removes the lines, so that other text can be written in their place."""
        start = self._to_the_first(columns)
        is_drawn, self._drawn = bool(self._drawn), ()
        return start + ERASE_BELOW if is_drawn else ""

    def draw(self, lines: Sequence[str], columns: int) -> str:
        """Return what shows lines in place of those before; nothing where they are the same."""
        cut = tuple(shorten(line, columns - 1) for line in lines)  # in the last column a terminal may wrap the line
        if cut == self._drawn:
            return ""
        text = self._to_the_first(columns) + f"{ERASE_REST}\n".join(cut) + ERASE_BELOW
        self._drawn = cut
        return text

    def _to_the_first(self, columns: int) -> str:
        """Return what moves the cursor; in a window that was made narrower, lines take more rows than before."""
        rows = sum(max(1, -(-display_width(line) // columns)) for line in self._drawn)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "")


LEFT_OUT = (*map(re.compile, (" steps/s$", "/step$", " joined$", " ranks up$", "^loss ")), TIME_LEFT)
"""Which parts are left out, the least important first; all others stay."""


def fit_parts(parts: Sequence[str], columns: int, between: str = " | ") -> list[str]:
    """Return the parts that fit into so many columns."""
    fitting = list(parts)
    for pattern in LEFT_OUT:
        if display_width(between.join(fitting)) <= columns:
            break
        fitting = [part for part in fitting if not pattern.search(part)]
    return fitting
