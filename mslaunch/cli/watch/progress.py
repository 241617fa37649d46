"""How far a job is and how long it still takes, from the steps that a rank prints. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.metrics.progress import progress_words, share_done
from mslaunch.metrics.rows import Number
from mslaunch.metrics.series import STEP_NAMES, Series, last_step_came

RECENT = 50
"""How many of the last steps tell how fast the job is now."""
LAST_STEPS = 5
"""Whose mean is a rank's step time."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    share: float | None = None
    """What part of the work is done, from 0 to 1."""


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
    return JobProgress(tuple(progress_words(values, age)), share_done(values))


def step_time_of(series: Mapping[str, Series]) -> float | None:
    """Return the mean of a rank's last step times: as it has printed them, else from when its steps came."""
    if told := series.get("step_time"):
        some = [value for value in told.value[-LAST_STEPS:] if 0 < value < math.inf]
        return sum(some) / len(some) if some else None
    return _seconds_between_steps(series)


def _seconds_between_steps(series: Mapping[str, Series]) -> float | None:
    """Return how long steps took lately; what came before a new epoch, where steps begin again, does not count."""
    steps = next((series[name] for name in STEP_NAMES if name in series), None)
    if steps is None or len(steps) < 2:
        return None
    first = last = len(steps) - 1
    while first > max(0, last - RECENT) and steps.value[first - 1] <= steps.value[first]:
        first -= 1
    seconds, count = steps.time[last] - steps.time[first], steps.value[last] - steps.value[first]
    return seconds / count if seconds > 0 and 0 < count < math.inf else None
