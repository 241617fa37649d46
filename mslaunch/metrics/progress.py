"""How far a rank is, from its last numbers: for a status line, a table and a progress bar."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mslaunch.metrics.rows import Number
from mslaunch.words import count_words

Values = Mapping[str, Number]


def progress_words(values: Values) -> list[str]:
    """Say it in the parts of a status line: `epoch 1/2 step 150/400`, `loss 0.53`, `25.0 steps/s`, `12 min left`."""
    where = [_of("epoch", values, "epochs"), _of("step", values, "steps")]
    parts = [" ".join(word for word in where if word)]
    if "loss" in values:
        parts.append(f"loss {short(values['loss'])}")
    if (rate := steps_per_second(values)) is not None:
        parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.3g} s/step")
    if (left := seconds_left(values)) is not None:
        parts.append(f"{duration_words(left)} left")
    return [part for part in parts if part]


def _of(name: str, values: Values, whole: str) -> str:
    if name not in values:
        return ""
    most = f"/{count_words(values[whole])}" if whole in values else ""
    return f"{name} {count_words(values[name])}{most}"


def short(number: Number) -> str:
    """Return a number with as many digits as a person reads."""
    return f"{number:.5g}" if isinstance(number, float) else str(number)


def steps_per_second(values: Values) -> float | None:
    """Return how fast steps go by."""
    seconds = values.get("step_time")
    return 1 / seconds if seconds and math.isfinite(seconds) and seconds > 0 else None


def share_done(values: Values) -> float | None:
    """Return the share of the whole job that is done, where its lines tell how long it is."""
    step, steps = values.get("step"), values.get("steps")
    epoch, epochs = values.get("epoch"), values.get("epochs")
    if epochs and epoch is not None:
        within = step / steps - 1 if steps and step is not None else 0.0
        share = (epoch + within) / epochs
    elif steps and step is not None:
        share = step / steps
    else:
        return None
    return min(1.0, max(0.0, share)) if math.isfinite(share) else None


def seconds_left(values: Values) -> float | None:
    """Return how long the rest takes at the present speed."""
    steps, seconds = values.get("steps"), values.get("step_time")
    share = share_done(values)
    if share is None or not steps or not seconds:
        return None
    left = (1 - share) * steps * (values.get("epochs") or 1) * seconds
    return left if math.isfinite(left) else None


def duration_words(seconds: float) -> str:
    """Return `8 s`, `12 min`, `3.5 h` or `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
