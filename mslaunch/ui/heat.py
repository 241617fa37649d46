"""The heat map of a document: how long a step took, ranks by time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import Series, SeriesTable
from mslaunch.ranges import format_ranges
from mslaunch.ui.bounds import Bounds
from mslaunch.ui.curves import columns_of, span_of
from mslaunch.ui.numbers import number


def make_heat(table: SeriesTable, start: float, bounds: Bounds) -> dict[str, Any] | None:
    """Return a matrix of seconds a step; None where no rank has told steps. Where there are many ranks, some share a
    row, which shows the slowest of them."""
    timed = {source: series for source in table.sources if (series := _step_times(table, source))}
    ranks = sorted({source.rank for source in timed if source.rank is not None})
    if not ranks:
        return None
    columns = min(bounds.columns, max(map(len, timed.values())))
    column = columns_of(list(timed.values()), columns)
    together = -(-len(ranks) // bounds.rows)
    row_of = {rank: at // together for at, rank in enumerate(ranks)}
    cells: list[list[float | None]] = [[None] * columns for _ in range(-(-len(ranks) // together))]
    for source, series in timed.items():
        row = cells[row_of[int(source.rank or 0)]]
        for place, mean in _without_gaps(_means(series, column, columns)):
            row[place] = mean if (known := row[place]) is None else max(known, mean)
    first, last = span_of(list(timed.values()))
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
    named = table.of(source)
    if told := named.get("step_time"):
        return told
    found, steps = Series(), named.get("total_step") or named.get("step")
    if steps:
        for at in range(1, len(steps)):
            made, took = steps.value[at] - steps.value[at - 1], steps.time[at] - steps.time[at - 1]
            if made > 0 and took >= 0:
                found.add(steps.time[at], steps.value[at], took / made)
    return found if len(found) else None


def _means(series: Series, column: Any, columns: int) -> Iterator[tuple[int, float]]:
    sums, counts = [0.0] * columns, [0] * columns
    for time, value in zip(series.time, series.value, strict=True):
        if math.isfinite(value):
            place = column(time)
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
