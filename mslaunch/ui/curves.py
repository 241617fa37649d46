"""Curves of a document: each number of each source with few points, and bands where there are many sources. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import Series, SeriesTable
from mslaunch.ui.bands import make_bands
from mslaunch.ui.bounds import Bounds
from mslaunch.ui.numbers import number

FEWEST_POINTS = 12
MOST_POINTS = 2000
NOT_DRAWN = frozenset({"steps", "epochs", "stopped", "memory_total", "disk_total"})
KINDS = ("rank", "host", "device")

Curve = dict[str, Any]


def kind_of(source: Source) -> str:
    """Say what a source is: rank, device or host."""
    if source.rank is not None:
        return "rank"
    return "host" if source.device is None else "device"


def make_curves(table: SeriesTable, start: float, bounds: Bounds, wanted: Sequence[int] = ()) -> list[Curve]:
    """Return the curves of a run; `wanted` ranks have curves of their own before others."""
    chosen: list[Source] = []
    bands: list[Curve] = []
    for kind in KINDS:
        sources = [source for source in table.sources if kind_of(source) == kind]
        own = _choose(sources, bounds.sources, wanted)
        chosen += own
        if len(own) < len(sources):
            bands += make_bands(lambda source: dict(_drawn(table, source)), sources, kind, start)
    drawn = [(source, name, series) for source in chosen for name, series in _drawn(table, source)]
    left = max(0, bounds.points - sum(len(band["t"]) for band in bands))
    most = min(MOST_POINTS, max(FEWEST_POINTS, left // max(1, len(drawn))))
    return bands + [_curve(source, name, series, start, most) for source, name, series in drawn]


def _drawn(table: SeriesTable, source: Source) -> Iterator[tuple[str, Series]]:
    return ((name, series) for name, series in table.of(source).items() if name not in NOT_DRAWN)


def _choose(sources: Sequence[Source], most: int, wanted: Sequence[int]) -> list[Source]:
    """Choose whole ranks, hosts or devices, with all their attempts: those that are wanted, else evenly spread."""
    who = list(dict.fromkeys((source.rank, source.host, source.device) for source in sources))
    if len(who) <= most:
        return list(sources)
    who.sort(key=lambda one: tuple(-1 if part is None else part for part in one if not isinstance(part, str)))
    first = [one for one in who if one[0] is not None and one[0] in wanted][:most]
    others = [one for one in who if one not in first]
    left = most - len(first)
    spread = [others[at * len(others) // left] for at in range(left)] if left else []
    kept = set(first + spread)
    return [source for source in sources if (source.rank, source.host, source.device) in kept]


def _curve(source: Source, name: str, series: Series, start: float, most: int) -> Curve:
    who = {key: value for key, value in source._asdict().items() if value is not None}
    return {"kind": kind_of(source), **who, "name": name, **thin_series(series, start, most)}


def thin_series(series: Series, start: float, most: int) -> dict[str, Any]:
    """Return at most so many points: of neighbours the last number, the least and the greatest."""
    size = max(1, -(-len(series) // most))
    ends = range(size - 1, len(series) + size - 1, size)
    pieces = [slice(end - size + 1, end + 1) for end in ends]
    last = [min(end, len(series) - 1) for end in ends]
    value = [_last(series.value[piece]) for piece in pieces]
    least = [min(series.least[piece]) for piece in pieces]
    greatest = [max(series.greatest[piece]) for piece in pieces]
    found: dict[str, Any] = {"t": [round(series.time[at] - start, 2) for at in last], "v": [*map(number, value)]}
    if any(math.isfinite(series.step[at]) for at in last):
        found["s"] = [number(series.step[at]) for at in last]
    if any(low < high for low, high in zip(least, greatest, strict=True)):
        found |= {"lo": [*map(number, least)], "hi": [*map(number, greatest)]}
    return found


def _last(values: Sequence[float]) -> float:
    """The last number; one that is not finite outweighs it, since that is what somebody looks for."""
    return next((value for value in values if not math.isfinite(value)), values[-1])


def span_of(series: Sequence[Series]) -> tuple[float, float]:
    """Return the first and the last time of some series."""
    times = [(one.time[0], one.time[-1]) for one in series if len(one)]
    return min((first for first, _ in times), default=0.0), max((last for _, last in times), default=0.0)


def columns_of(series: Sequence[Series], columns: int) -> Callable[[float], int]:
    """Return what says in which column of equal width a time is."""
    first, last = span_of(series)
    if not 0 < last - first < math.inf:
        return lambda _: 0
    scale = columns / (last - first)
    return lambda time: max(0, min(columns - 1, int((time - first) * scale)))
