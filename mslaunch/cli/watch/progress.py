"""How far a job is and how long it still takes, from the steps that a rank prints. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.metrics.rows import Number
from mslaunch.metrics.series import STEP_NAMES, Series

RECENT = 50
"""How many of the last steps tell how fast the job is now."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    share: float | None = None
    """What part of the work is done, from 0 to 1."""
    left: float | None = None
    """Seconds until the end, at the present rate."""


def make_progress(last: Mapping[str, Number], series: Mapping[str, Series]) -> JobProgress | None:
    """Return how far a rank is; None where it has printed neither step nor epoch."""
    known = {name: float(value) for name, value in last.items() if math.isfinite(value)}
    if not known.keys() & {*STEP_NAMES, "epoch"}:
        return None
    rate = steps_per_second(series)
    share, left_steps = _share(known)
    words = [*_counts(known), *([f"{rate:.3g} steps/s"] if rate else [])]
    left = left_steps / rate if rate and left_steps is not None else None
    return JobProgress(tuple(words), share, left)


def _counts(known: Mapping[str, float]) -> list[str]:
    step = known.get("step", known.get("total_step"))
    pairs = (("epoch", known.get("epoch"), known.get("epochs")), ("step", step, known.get("steps")))
    return [f"{name} {_of(count, total)}" for name, count, total in pairs if count is not None]


def _of(count: float, total: float | None) -> str:
    return f"{count:.10g}" if total is None else f"{count:.10g}/{total:.10g}"


def _share(known: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return the part that is done, and how many steps are left; each None where it is not known."""
    step, steps, epoch, epochs = (known.get(name) for name in ("step", "steps", "epoch", "epochs"))
    if step is not None and steps and epoch is not None and epochs:
        return _bounded((epoch - 1) * steps + min(step, steps), epochs * steps)
    if step is not None and steps and epoch is None:
        return _bounded(step, steps)
    if epoch is not None and epochs:
        return _bounded(epoch if epoch != int(epoch) else epoch - 1, epochs)[0], None
    return None, None


def _bounded(done: float, total: float) -> tuple[float | None, float | None]:
    if total <= 0:
        return None, None
    return min(1.0, max(0.0, done / total)), max(0.0, total - done)


def steps_per_second(series: Mapping[str, Series]) -> float | None:
    """Return how fast steps went by lately; what came before a new epoch, where steps begin again, does not count."""
    steps = next((series[name] for name in STEP_NAMES if name in series), None)
    if steps is None or len(steps) < 2:
        return None
    first = last = len(steps) - 1
    while first > max(0, last - RECENT) and steps.value[first - 1] <= steps.value[first]:
        first -= 1
    seconds, count = steps.time[last] - steps.time[first], steps.value[last] - steps.value[first]
    return count / seconds if seconds > 0 and 0 < count < math.inf else None
