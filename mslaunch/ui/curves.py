"""Curves of a document: each number of each source with few points, and bands where there are many sources. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import lt
from statistics import median, median_low
from typing import Any

from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import STEP_NAMES, Series, SeriesTable
from mslaunch.ranges import format_ranges
from mslaunch.ui.bounds import Bounds, number

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


def make_bands(series_of: Mapping[Source, Named], kind: str, start: float) -> list[Band]:
    """Return a band for every name of the last few attempts."""
    bands: list[Band] = []
    for attempt in sorted({source.attempt for source in series_of})[-MOST_ATTEMPTS:]:
        own = [numbers for source, numbers in series_of.items() if source.attempt == attempt]
        for name in dict.fromkeys(name for numbers in own for name in numbers):
            tellers = [numbers for numbers in own if name in numbers]
            by_step = all(_is_told_by_step(name, numbers) for numbers in tellers)
            if band := _band([_finite(numbers[name]) for numbers in tellers], by_step, start):
                bands.append({"kind": kind, "attempt": attempt, "name": name, "all": len(tellers), **band})
    return bands


def _is_told_by_step(name: str, numbers: Named) -> bool:
    """Tell whether a number comes with ascending steps; what is measured beside them comes at times of its own."""
    steps = next((numbers[step_name] for step_name in STEP_NAMES if step_name in numbers), None)
    series = numbers[name]
    if steps is None or name in STEP_NAMES or steps.time[-1] != series.time[-1]:
        return False
    return math.isfinite(series.step[0]) and all(map(lt, series.step, series.step[1:]))


def _finite(series: Series) -> Series:
    """Leave out what is not finite: a band has no place for it, and curves of ranks mark it."""
    if all(map(math.isfinite, series.value)):
        return series
    places = [at for at, value in enumerate(series.value) if math.isfinite(value)]
    columns = (series.time, series.step, series.value, series.least, series.greatest)
    return Series(*(array("d", [column[at] for at in places]) for column in columns))


def _band(sources: Iterable[Series], by_step: bool, start: float) -> Band | None:
    """Every source counts with the number that holds; where fewer than half have one, the band has no point."""
    series_with_points = [series for series in sources if len(series)]
    cells = [Cell(place) for place in _places(series_with_points, by_step)]
    for series in series_with_points:
        _add(series, series.step if by_step else series.time, cells)
    covered = [cell for cell in cells if 2 * len(cell.values) >= len(series_with_points)]
    if not covered:
        return None
    band: Band = {
        "t": [round((median_low(cell.times) if by_step else cell.place) - start, 2) for cell in covered],
        "v": [number(median(cell.values)) for cell in covered],
        "lo": [number(cell.least) for cell in covered],
        "hi": [number(cell.greatest) for cell in covered],
    }
    steps = [cell.place if by_step else _median_step(cell) for cell in covered]
    return {**band, "s": [*map(number, steps)]} if all(map(math.isfinite, steps)) else band


def _median_step(cell: Cell) -> float:
    finite = [step for step in cell.steps if math.isfinite(step)]
    return median_low(finite) if finite else math.nan


def _places(all_series: Sequence[Series], by_step: bool) -> list[float]:
    """Return the steps that were told, or times at equal distances; few enough to draw, and the last one always."""
    if not all_series:
        return []
    if not by_step:
        first, last = min(series.time[0] for series in all_series), max(series.time[-1] for series in all_series)
        if not 0 < last - first < math.inf:
            return [last]
        return [first + (last - first) * at / (POINTS - 1) for at in range(POINTS)]
    steps = sorted(set().union(*(series.step for series in all_series)))
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


FEWEST_POINTS = 12
MOST_POINTS = 2000
NOT_DRAWN = frozenset({"steps", "epochs", "stopped", "memory_total", "disk_total"})

Curve = dict[str, Any]


def kind_of(source: Source) -> str:
    """Say what a source is: rank, device or host."""
    if source.rank is not None:
        return "rank"
    return "host" if source.device is None else "device"


def make_curves(table: SeriesTable, start: float, bounds: Bounds, first_ranks: Sequence[int] = ()) -> list[Curve]:
    """Return the curves of a run; `first_ranks` have curves of their own before others."""
    chosen: list[Source] = []
    bands: list[Curve] = []
    for kind in ("rank", "host", "device"):
        sources = [source for source in table.sources if kind_of(source) == kind]
        own = _choose(sources, bounds.sources, first_ranks)
        chosen += own
        if len(own) < len(sources):
            bands += make_bands({source: _drawn(table, source) for source in sources}, kind, start)
    drawn = [(source, name, series) for source in chosen for name, series in _drawn(table, source).items()]
    left = max(0, bounds.points - sum(len(band["t"]) for band in bands))
    most = min(MOST_POINTS, max(FEWEST_POINTS, left // max(1, len(drawn))))
    for source, name, series in drawn:
        who = {key: value for key, value in source._asdict().items() if value is not None}
        bands.append({"kind": kind_of(source), **who, "name": name, **thin_series(series, start, most)})
    return bands


def _drawn(table: SeriesTable, source: Source) -> Named:
    return {name: series for name, series in table.of(source).items() if name not in NOT_DRAWN}


def _choose(sources: Sequence[Source], most: int, first_ranks: Sequence[int]) -> list[Source]:
    """Choose whole ranks, hosts or devices, with all their attempts: those that are wanted, else evenly spread."""
    who = list(dict.fromkeys((source.rank, source.host, source.device) for source in sources))
    if len(who) <= most:
        return list(sources)
    who.sort(key=lambda identity: tuple(-1 if part is None else part for part in identity if not isinstance(part, str)))
    first = [identity for identity in who if identity[0] is not None and identity[0] in first_ranks][:most]
    others = [identity for identity in who if identity not in first]
    left = most - len(first)
    spread = [others[at * len(others) // left] for at in range(left)] if left else []
    chosen = set(first + spread)
    return [source for source in sources if (source.rank, source.host, source.device) in chosen]


def thin_series(series: Series, start: float, most: int) -> dict[str, Any]:
    """Return at most so many points: of neighbours the last number, the least and the greatest."""
    size = max(1, -(-len(series) // most))
    ends = range(size - 1, len(series) + size - 1, size)
    pieces = [slice(end - size + 1, end + 1) for end in ends]
    last = [min(end, len(series) - 1) for end in ends]
    value = []
    for piece in pieces:  # a number that is not finite is what somebody looks for
        numbers = series.value[piece]
        value.append(next((number for number in numbers if not math.isfinite(number)), numbers[-1]))
    least = [min(series.least[piece]) for piece in pieces]
    greatest = [max(series.greatest[piece]) for piece in pieces]
    points: dict[str, Any] = {"t": [round(series.time[at] - start, 2) for at in last], "v": [*map(number, value)]}
    if any(math.isfinite(series.step[at]) for at in last):
        points["s"] = [number(series.step[at]) for at in last]
    if any(low < high for low, high in zip(least, greatest, strict=True)):
        points |= {"lo": [*map(number, least)], "hi": [*map(number, greatest)]}
    return points


def make_heat(table: SeriesTable, start: float, bounds: Bounds) -> dict[str, Any] | None:
    """Return a matrix of seconds a step; None where no rank has told steps. Ranks that share a row show the slowest."""
    timed = {source: series for source in table.sources if (series := _step_times(table, source))}
    ranks = sorted({source.rank for source in timed if source.rank is not None})
    if not ranks:
        return None
    columns = min(bounds.columns, max(map(len, timed.values())))
    first = min(series.time[0] for series in timed.values())
    last = max(series.time[-1] for series in timed.values())
    scale = columns / (last - first) if 0 < last - first < math.inf else 0.0
    together = -(-len(ranks) // bounds.rows)
    row_of = {rank: at // together for at, rank in enumerate(ranks)}
    cells: list[list[float | None]] = [[None] * columns for _ in range(-(-len(ranks) // together))]
    for source, series in timed.items():
        row = cells[row_of[int(source.rank or 0)]]
        for place, mean in _without_gaps(_means(series, first, scale, columns)):
            row[place] = mean if (slowest := row[place]) is None else max(slowest, mean)
    return {
        "rows": [format_ranges(ranks[at : at + together]) for at in range(0, len(ranks), together)],
        "first": round(first - start, 2),
        "last": round(last - start, 2),
        "cells": [[None if value is None else number(float(f"{value:.4g}")) for value in row] for row in cells],
    }


def _step_times(table: SeriesTable, source: Source) -> Series | None:
    """Return what a rank told of its step times; else what its steps and their times say."""
    if source.rank is None:
        return None
    numbers = table.of(source)
    if printed := numbers.get("step_time"):
        return printed
    measured, steps = Series(), numbers.get("total_step") or numbers.get("step")
    if steps:
        for at in range(1, len(steps)):
            made, took = steps.value[at] - steps.value[at - 1], steps.time[at] - steps.time[at - 1]
            if made > 0 and took >= 0:
                measured.add(steps.time[at], steps.value[at], took / made)
    return measured if len(measured) else None


def _means(series: Series, first: float, scale: float, columns: int) -> Iterator[tuple[int, float]]:
    sums, counts = [0.0] * columns, [0] * columns
    for time, value in zip(series.time, series.value, strict=True):
        if math.isfinite(value):
            place = max(0, min(columns - 1, int((time - first) * scale))) if scale else 0
            sums[place] += value
            counts[place] += 1
    means = ((place, sums[place] / count) for place, count in enumerate(counts) if count)
    return ((place, mean) for place, mean in means if math.isfinite(mean))


def _without_gaps(means: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Fill what lies between two columns with the later one: a step time is told when the steps are over."""
    before: int | None = None
    for place, mean in means:
        yield from ((between, mean) for between in range(place if before is None else before + 1, place + 1))
        before = place
