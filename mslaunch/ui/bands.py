"""Bands of a document: the least, the median and the greatest number of many sources, by step or by time. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import lt
from statistics import median, median_low
from typing import Any

from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import STEP_NAMES, Series
from mslaunch.ui.numbers import number

POINTS = 200
MOST_ATTEMPTS = 2

Band = dict[str, Any]
Named = Mapping[str, Series]


@dataclass(slots=True)
class Cell:
    """What the sources tell at one place of the axis: a step or a time."""

    place: float
    times: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    least: float = math.inf
    greatest: float = -math.inf


def make_bands(series_of: Callable[[Source], Named], sources: Sequence[Source], kind: str, start: float) -> list[Band]:
    """Return a band for every name of the last few attempts."""
    bands: list[Band] = []
    for attempt in sorted({source.attempt for source in sources})[-MOST_ATTEMPTS:]:
        own = [series_of(source) for source in sources if source.attempt == attempt]
        for name in dict.fromkeys(name for named in own for name in named):
            tellers = [named for named in own if name in named]
            by_step = all(_is_told_by_step(name, named) for named in tellers)
            if band := _band([_finite(named[name]) for named in tellers], by_step, start):
                bands.append({"kind": kind, "attempt": attempt, "name": name, "all": len(tellers), **band})
    return bands


def _is_told_by_step(name: str, named: Named) -> bool:
    """Tell whether a number comes with ascending steps; what is measured beside them comes at times of its own."""
    steps = next((named[one] for one in STEP_NAMES if one in named), None)
    series = named[name]
    if steps is None or name in STEP_NAMES or steps.time[-1] != series.time[-1]:
        return False
    return math.isfinite(series.step[0]) and all(map(lt, series.step, series.step[1:]))


def _finite(series: Series) -> Series:
    """Leave out what is not finite: a band has no place for it, and curves of ranks mark it."""
    if all(map(math.isfinite, series.value)):
        return series
    kept = [at for at, value in enumerate(series.value) if math.isfinite(value)]
    columns = (series.time, series.step, series.value, series.least, series.greatest)
    return Series(*(array("d", [column[at] for at in kept]) for column in columns))


def _band(found: Iterable[Series], by_step: bool, start: float) -> Band | None:
    """Every source counts with the number that holds; where fewer than half have one, the band has no point."""
    told = [series for series in found if len(series)]
    cells = [Cell(place) for place in _places(told, by_step)]
    for series in told:
        _add(series, series.step if by_step else series.time, cells)
    kept = [cell for cell in cells if 2 * len(cell.values) >= len(told)]
    if not kept:
        return None
    band: Band = {
        "t": [round((median_low(cell.times) if by_step else cell.place) - start, 2) for cell in kept],
        "v": [number(median(cell.values)) for cell in kept],
        "lo": [number(cell.least) for cell in kept],
        "hi": [number(cell.greatest) for cell in kept],
    }
    steps = [cell.place if by_step else _median_step(cell) for cell in kept]
    return {**band, "s": [*map(number, steps)]} if all(map(math.isfinite, steps)) else band


def _median_step(cell: Cell) -> float:
    known = [step for step in cell.steps if math.isfinite(step)]
    return median_low(known) if known else math.nan


def _places(told: Sequence[Series], by_step: bool) -> list[float]:
    """Return the steps that were told, or times at equal distances; few enough to draw, and the last one always."""
    if not told:
        return []
    if not by_step:
        first, last = min(series.time[0] for series in told), max(series.time[-1] for series in told)
        if not 0 < last - first < math.inf:
            return [last]
        return [first + (last - first) * at / (POINTS - 1) for at in range(POINTS)]
    steps = sorted(set().union(*(series.step for series in told)))
    return steps if len(steps) <= POINTS else [steps[(at + 1) * len(steps) // POINTS - 1] for at in range(POINTS)]


def _add(series: Series, axis: Sequence[float], cells: Sequence[Cell]) -> None:
    """Put into each cell what a source told last, there or before; the last number holds for the longest wait."""
    until = axis[-1] + max((later - earlier for earlier, later in pairwise(axis)), default=0.0)
    then, count = 0, len(axis)
    for cell in cells:
        first = then
        while then < count and axis[then] <= cell.place:
            then += 1
        if not then:
            continue
        if cell.place > until:
            return
        at = then - 1
        cell.times.append(series.time[at])
        cell.steps.append(series.step[at])
        cell.values.append(series.value[at])
        new = slice(min(first, at), then)
        cell.least = min(cell.least, *series.least[new])
        cell.greatest = max(cell.greatest, *series.greatest[new])
