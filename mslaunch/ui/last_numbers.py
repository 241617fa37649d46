"""The last numbers of a run for a list, from the end of metrics.jsonl."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mslaunch.documents.limits import open_file
from mslaunch.metrics.pace import seconds_silent, step_time_of
from mslaunch.metrics.rows import Row, read_row
from mslaunch.metrics.series import STEP_NAMES, Series, SeriesTable
from mslaunch.ui.numbers import number

END = 1 << 16  # bytes that are read first
MOST = 32 << 20  # metrics.jsonl is thinned before it is as long
LISTED = (*STEP_NAMES, "steps", "epoch", "epochs", "loss")
_NEEDED = tuple(f'"{name}":'.encode() for name in (*STEP_NAMES, "loss"))


@dataclass(frozen=True, slots=True)
class LastNumbers:
    """What a list shows, of the first rank that told it, and the series of the rank that told a step last."""

    values: dict[str, Any] = field(default_factory=dict)
    series: Mapping[str, Series] = field(default_factory=dict)

    def seconds_silent(self, now: float) -> int | None:
        """Return for how long no rank has told a step, where that is long."""
        seconds = seconds_silent(self.series, step_time_of(self.series), now)
        return None if seconds is None else round(seconds)


NOTHING_TOLD = LastNumbers()


def read_last_numbers(path: Path) -> LastNumbers:
    """Read as much of the end as has a step or a loss: resources are told on while a job hangs."""
    try:
        with open_file(path) as file:
            return _last_numbers(row for line in _end(file).split(b"\n") if (row := read_row(line)) is not None)
    except OSError:
        return NOTHING_TOLD


def _end(file: BinaryIO) -> bytes:
    size, piece = os.fstat(file.fileno()).st_size, END
    while True:
        file.seek(max(0, size - piece))
        found = file.read(piece)
        if piece >= min(size, MOST) or any(name in found for name in _NEEDED):
            return found
        piece *= 4


def _last_numbers(rows: Iterable[Row]) -> LastNumbers:
    ranked = [row for row in rows if row.source.rank is not None]
    newest = max((row.source.attempt for row in ranked), default=0)
    table = SeriesTable()
    table.add(row for row in ranked if row.source.attempt == newest)
    values: dict[str, Any] = {}
    for source in sorted(table.sources, key=lambda one: -(one.rank or 0)):
        last = table.last(source)
        values |= {name: number(last[name]) for name in LISTED if name in last}
    told = [table.of(source) for source in table.sources]
    return LastNumbers(values, max(told, key=_told_at, default={}))


def _told_at(series: Mapping[str, Series]) -> float:
    return max((series[name].time[-1] for name in (*STEP_NAMES, "loss") if name in series), default=0.0)
