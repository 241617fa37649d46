"""The numbers of a job as series over time, one for each source and name."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mslaunch.metrics.rows import Number, Row, Source, Spread

STEP_NAMES = ("total_step", "step")
"""What says how far a rank is, the better one first: `step` may begin again with every epoch."""
SIGNS_OF_STEPS = frozenset({*STEP_NAMES, "loss"})
"""What a rank tells as often as it makes steps."""
STEPS_SEEN = "steps_seen"
"""What rules of alerts call the number of steps that a rank has made while it was watched."""


class StepsSeen:
    """Counts the steps of a rank from its rows, over epochs that begin again."""

    def __init__(self) -> None:
        self.count = 0.0
        self._last: Number | None = None

    def add(self, row: Row) -> None:
        step = next((number for name in STEP_NAMES if (number := row.last(name)) is not None), None)
        if step is None or not math.isfinite(step):
            return
        if self._last is not None and step > self._last:
            self.count += step - self._last
        self._last = step


def _numbers() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Series:
    """One name of one source: at each time the step, the number, and the least and greatest of what became one row.

    The step is NaN before the first one is known.
    """

    time: array[float] = field(default_factory=_numbers)
    step: array[float] = field(default_factory=_numbers)
    value: array[float] = field(default_factory=_numbers)
    least: array[float] = field(default_factory=_numbers)
    greatest: array[float] = field(default_factory=_numbers)

    def __len__(self) -> int:
        return len(self.time)

    def add(self, time: float, step: float, value: Number | Spread) -> None:
        spread = value if isinstance(value, Spread) else Spread(value, value, value)
        self.time.append(time)
        self.step.append(step)
        self.value.append(spread.last)
        self.least.append(spread.least)
        self.greatest.append(spread.greatest)


class SeriesTable:
    """All series, and the last numbers of every source."""

    def __init__(self) -> None:
        self._series: dict[Source, dict[str, Series]] = {}
        self._last: dict[Source, dict[str, Number]] = {}
        self._steps: dict[Source, StepsSeen] = {}
        self.attempts: dict[int, int] = {}
        """The last attempt of every rank that has told something."""

    def clear(self) -> None:
        self.attempts.clear()
        self._series.clear()
        self._last.clear()
        self._steps.clear()

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.source not in self._series and row.source.rank is not None:
                rank = row.source.rank
                self.attempts[rank] = max(row.source.attempt, self.attempts.get(rank, 0))
            series = self._series.setdefault(row.source, {})
            last = self._last.setdefault(row.source, {})
            last.update(row.last_values())
            if row.source.rank is not None:
                self._steps.setdefault(row.source, StepsSeen()).add(row)
            step = step_of(last)
            for name, value in row.values.items():
                if name not in series:
                    series[name] = Series()
                series[name].add(row.time, math.nan if step is None else step, value)

    @property
    def sources(self) -> list[Source]:
        """Everything that has told something, in the order of its first row."""
        return list(self._series)

    def names(self) -> list[str]:
        """Return every name that some rank has told, in the order of the first time."""
        names: dict[str, None] = {}
        for source, series in self._series.items():
            if source.rank is not None:
                names.update(dict.fromkeys(series))
        return list(names)

    def of(self, source: Source) -> dict[str, Series]:
        """Return the series of one source by name."""
        return self._series.get(source, {})

    def last(self, source: Source) -> dict[str, Number]:
        """Return the last numbers of one source by name."""
        return self._last.get(source, {})

    def steps_seen(self, source: Source) -> float:
        """Return how many steps a rank has made while it was watched."""
        return self._steps[source].count if source in self._steps else 0.0


def step_of(values: dict[str, Number]) -> Number | None:
    """Return how far a rank is, counted over epochs where that is known."""
    return next((values[name] for name in STEP_NAMES if name in values), None)


def last_step_came(series: Mapping[str, Series]) -> float | None:
    """Return when the last step of a rank came; None where none did."""
    return max((series[name].time[-1] for name in SIGNS_OF_STEPS & series.keys()), default=None)
