"""How fast the steps of a rank go by, and whether it has printed none for long. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mslaunch.metrics.series import STEP_NAMES, Series

RECENT = 50
"""How many of the last steps tell how fast the job is now."""
LAST_STEPS = 5
"""Whose mean is a rank's step time."""
SILENT_SECONDS = 30.0
SILENT_STEPS = 10


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


def seconds_silent(series: Mapping[str, Series], usual: float | None, now: float) -> float | None:
    """Return for how long a rank has printed no step, where that is far longer than its usual step takes."""
    came = [series[name].time[-1] for name in (*STEP_NAMES, "loss") if name in series]
    seconds = now - max(came, default=now)
    return seconds if seconds > max(SILENT_SECONDS, SILENT_STEPS * (usual or 0.0)) else None
