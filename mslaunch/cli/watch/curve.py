"""A series of numbers as a curve of braille characters. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_FIRST = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a braille character's dots: by column, from top to bottom."""
ACROSS, DOWN = len(_DOTS), len(_DOTS[0])


def draw_curve(places: Sequence[float], values: Sequence[float], columns: int, lines: int) -> list[str]:
    """Return the curve of the finite values over their places; no lines where there are not two of them."""
    points = [(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(x) and math.isfinite(y)]
    if len(points) < 2 or columns < 1 or lines < 1:
        return []
    heights = _heights(_means(points, columns * ACROSS), lines * DOWN)
    cells = [[0] * columns for _ in range(lines)]
    for at, low, high in _strokes(heights):
        for height in range(low, high + 1):
            row = lines * DOWN - 1 - height
            cells[row // DOWN][at // ACROSS] |= _DOTS[at % ACROSS][row % DOWN]
    return ["".join(chr(_FIRST + cell) for cell in line) for line in cells]


def _means(points: Sequence[tuple[float, float]], width: int) -> dict[int, float]:
    """Return the mean of the values that fall on each column of dots."""
    first = min(x for x, _ in points)
    span = max(x for x, _ in points) - first
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(int((x - first) / span * (width - 1)) if span > 0 else 0, []).append(y)
    return {at: math.fsum(some) / len(some) for at, some in sorted(found.items())}


def _heights(means: dict[int, float], height: int) -> dict[int, int]:
    least = min(means.values())
    span = max(means.values()) - least
    if not 0 < span < math.inf:
        return dict.fromkeys(means, 0)
    return {at: round((mean - least) / span * (height - 1)) for at, mean in means.items()}


def _strokes(heights: dict[int, int]) -> list[tuple[int, int, int]]:
    """Return the vertical strokes that join one point with the next: column, lowest and highest dot."""
    strokes = [(at, height, height) for at, height in heights.items()]
    for (left, before), (right, after) in pairwise(heights.items()):
        for at in range(left + 1, right + 1):
            ends = [before + round((after - before) * (x - left) / (right - left)) for x in (at - 1, at)]
            strokes.append((at, min(ends), max(ends)))
    return strokes
