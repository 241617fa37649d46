"""How far a job is and how long it still takes, from the steps that a rank prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.metrics.pace import step_time_of
from mslaunch.metrics.progress import Extent, find_extent, progress_words
from mslaunch.metrics.rows import Number
from mslaunch.metrics.series import STEP_NAMES, Series, last_step_came


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    extent: Extent | None = None
    """How much is done, and of how much."""


def make_progress(
    last: Mapping[str, Number], series: Mapping[str, Series], now: float | None = None
) -> JobProgress | None:
    """Return how far a rank is; None where it has printed neither step nor epoch. `now`: while it runs."""
    if not last.keys() & {*STEP_NAMES, "epoch"}:
        return None
    measured = step_time_of(series)
    values = {**last, **({} if measured is None else {"step_time": measured})}
    came = last_step_came(series)
    age = None if now is None or came is None else now - came
    return JobProgress(tuple(progress_words(values, age)), find_extent(values))
