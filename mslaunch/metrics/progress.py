"""How far a rank is, from its last numbers: for a status line, a table and a progress bar."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.metrics.rows import Number
from mslaunch.metrics.series import STEP_NAMES, Series, last_step_came
from mslaunch.text import count_words

RECENT = 50
"""How many of the last steps tell how fast the job is now."""
SILENT_SECONDS = 30.0
SILENT_STEPS = 10


def step_time_of(series: Mapping[str, Series]) -> float | None:
    """Return the mean of a rank's last step times: as it has printed them, else from when its steps came."""
    if printed := series.get("step_time"):
        some = [value for value in printed.value[-5:] if 0 < value < math.inf]
        return sum(some) / len(some) if some else None
    steps = next((series[name] for name in STEP_NAMES if name in series), None)
    if steps is None or len(steps) < 2:
        return None
    # What came before a new epoch, where steps begin again, does not count.
    first = last = len(steps) - 1
    while first > max(0, last - RECENT) and steps.value[first - 1] <= steps.value[first]:
        first -= 1
    seconds, count = steps.time[last] - steps.time[first], steps.value[last] - steps.value[first]
    return seconds / count if seconds > 0 and 0 < count < math.inf else None


def seconds_silent(series: Mapping[str, Series], usual: float | None, now: float) -> float | None:
    """Return for how long a rank has printed no step, where that is far longer than its usual step takes."""
    came = last_step_came(series)
    return now - came if came is not None and is_silent(now - came, usual) else None


def is_silent(age: float, usual: float | None) -> bool:
    """Tell whether the last step came too many seconds ago for a rank whose steps usually take so long."""
    return age > max(SILENT_SECONDS, SILENT_STEPS * (usual or 0.0))


Values = Mapping[str, Number]
TIME_LEFT = re.compile(r" left(?: of epoch \d+)?$")
"""Which part of a status line tells the time left."""


def progress_words(values: Values, age: float | None = None) -> list[str]:
    """Say it in the parts of a status line: `epoch 1/2 step 150/400`, `loss 0.53`, `25.0 steps/s`, `12 min left`.

    Where nothing tells how many epochs there are: `2 min left of epoch 1`.

    `age` is how many seconds ago the last step came: beyond a limit, the speed of then says nothing about now.
    """
    where = [_of("epoch", values, "epochs"), _of("step", values, "steps")]
    parts = [" ".join(word for word in where if word)]
    if "loss" in values:
        parts.append(f"loss {short(values['loss'])}")
    if age is not None and is_silent(age, values.get("step_time")):
        return [part for part in (*parts, f"no step for {duration_words(age)}") if part]
    if (rate := steps_per_second(values)) is not None:
        parts.append(f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.3g} s/step")
    if extent := find_extent(values):
        left = extent.seconds_left(values.get("step_time"))
        if left is not None:
            parts.append(f"{duration_words(left)} left{extent.words}")
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


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is done, and of how much."""

    done: float
    whole: float
    epoch: int | None = None
    """The epoch that is meant, where nothing tells how many there are; else the whole job."""
    is_steps: bool = True
    """Whether these are steps; else epochs."""

    @property
    def share(self) -> float:
        return min(1.0, max(0.0, self.done / self.whole))

    def seconds_left(self, step_time: float | None) -> float | None:
        """Return how long the rest takes at this speed."""
        if not self.is_steps or not step_time or not step_time > 0:
            return None
        left = max(0.0, self.whole - self.done) * step_time
        return left if math.isfinite(left) else None

    @property
    def words(self) -> str:
        """Name the part of the job that is meant; empty for all of it."""
        return "" if self.epoch is None else f" of epoch {self.epoch}"


def find_extent(values: Values) -> Extent | None:
    """Return how far a rank is, where its lines tell how far it has to go."""
    numbers = {name: number for name, number in values.items() if math.isfinite(number)}
    step, steps, epoch, epochs = (numbers.get(name) for name in ("step", "steps", "epoch", "epochs"))
    extent = None
    if steps and step is not None:
        if epochs and epoch is not None:
            done = numbers.get("total_step", max(0, epoch - 1) * steps + step)
            extent = Extent(done, steps * epochs)
        elif isinstance(epoch, int):
            extent = Extent(step, steps, epoch)
        else:  # trainers that tell parts of epochs count the steps of the job
            extent = Extent(step, steps)
    elif epochs and epoch is not None and step is None:
        extent = Extent(epoch, epochs, is_steps=False)
    return extent if extent and extent.whole > 0 and math.isfinite(extent.done / extent.whole) else None


def duration_words(seconds: float) -> str:
    """Return `8 s`, `12 min`, `3.5 h` or `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
