"""A series of numbers as a curve of braille characters. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

_FIRST = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a braille character's dots: by column, from top to bottom."""
ACROSS, DOWN = len(_DOTS), len(_DOTS[0])
NO_NUMBER = "x"
"""Stands at the foot where a value is not finite."""


def draw_curve(places: Sequence[float], values: Sequence[float], columns: int, lines: int) -> list[str]:
    """Return the curve of the values over their places; no lines where there are not two finite ones."""
    points = [(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(x)]
    if sum(math.isfinite(y) for _, y in points) < 2 or columns < 1 or lines < 1:
        return []
    placed = _place(points, columns * ACROSS)
    gaps = {at for at, some in placed.items() if not all(map(math.isfinite, some))}
    heights = _heights(_means(placed), lines * DOWN)
    cells = [[0] * columns for _ in range(lines)]
    for at, low, high in _strokes(heights, gaps):
        for height in range(low, high + 1):
            row = lines * DOWN - 1 - height
            cells[row // DOWN][at // ACROSS] |= _DOTS[at % ACROSS][row % DOWN]
    drawn = [[chr(_FIRST + cell) for cell in line] for line in cells]
    for at in gaps:
        drawn[-1][at // ACROSS] = NO_NUMBER
    return ["".join(line) for line in drawn]


def _place(points: Sequence[tuple[float, float]], width: int) -> dict[int, list[float]]:
    """Return the values that fall on each column of dots."""
    first = min(x for x, _ in points)
    span = max(x for x, _ in points) - first
    columns: dict[int, list[float]] = {}
    for x, y in points:
        columns.setdefault(int((x - first) / span * (width - 1)) if span > 0 else 0, []).append(y)
    return dict(sorted(columns.items()))


def _means(placed: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the mean of the finite values in each column of dots."""
    finite = {at: [value for value in some if math.isfinite(value)] for at, some in placed.items()}
    return {at: math.fsum(some) / len(some) for at, some in finite.items() if some}


def _heights(means: dict[int, float], height: int) -> dict[int, int]:
    least = min(means.values())
    span = max(means.values()) - least
    if not 0 < span < math.inf:
        return dict.fromkeys(means, 0)
    return {at: round((mean - least) / span * (height - 1)) for at, mean in means.items()}


def _strokes(heights: dict[int, int], gaps: Collection[int]) -> list[tuple[int, int, int]]:
    """Return the vertical strokes that join one point with the next: column, lowest and highest dot.

    Points with a gap between them are not joined.
    """
    strokes = [(at, height, height) for at, height in heights.items()]
    for (left, before), (right, after) in pairwise(heights.items()):
        if any(left < gap < right for gap in gaps):
            continue
        for at in range(left + 1, right + 1):
            ends = [before + round((after - before) * (x - left) / (right - left)) for x in (at - 1, at)]
            strokes.append((at, min(ends), max(ends)))
    return strokes
