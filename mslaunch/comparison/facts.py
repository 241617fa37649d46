"""What is known of a run that is compared with others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mslaunch.metrics.series import Series

LESS_IS_BETTER = ("loss", "error", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse", "fid", "time")
MORE_IS_BETTER = ("acc", "top1", "top5", "f1", "bleu", "rouge", "map", "iou", "auc", "psnr", "score", "throughput")
"""Parts of names by which it is known which of two numbers is the better one."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file of a run's code: its text, or what stands for it where it is linked, large or no text."""

    text: str | None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run, as far as others can be compared with it; every mapping has texts or plain values by name."""

    name: str
    run: Mapping[str, Any] = field(default_factory=dict)
    """State, ranks, time and so on."""
    config: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    default_settings: frozenset[str] = frozenset()
    """Settings that nobody gave; other versions of mslaunch may have others, or write them in another way."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Final and best numbers: `loss`, `loss (best)`."""
    speed: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, CodeFile] | None = None
    """None where the run has no snapshot of its code."""


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Give nested values one name each: `net.width`."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        place = f"{prefix}.{name}" if prefix else str(name)
        flat.update(flatten(value, place) if isinstance(value, Mapping) and value else {place: value})
    return flat


def summarize_metrics(series: Mapping[str, Series], left_out: Iterable[str]) -> dict[str, float]:
    """Return the last number of each name, and the best where it is known which one that is."""
    found: dict[str, float] = {}
    for name, one in series.items():
        if name in left_out or not len(one):
            continue
        found[name] = one.value[-1]
        if (best := _best(name, one)) is not None:
            found[f"{name} (best)"] = best
    return found


def _best(name: str, series: Series) -> float | None:
    lower = name.lower()
    for choose, numbers, words in ((min, series.least, LESS_IS_BETTER), (max, series.greatest, MORE_IS_BETTER)):
        if any(word in lower for word in words):
            finite = [number for number in numbers if math.isfinite(number)]
            return choose(finite) if finite else None
    return None


def summarize_speed(series: Mapping[str, Series]) -> dict[str, float]:
    """Return how quickly a rank went: steps a second over all, and the medians of what it has told."""
    found: dict[str, float] = {}
    steps = series.get("total_step") or series.get("step")
    if steps is not None and len(steps) > 1:
        # Thinned rows are at the time of their last number, so first and last of the file are true.
        seconds, done = steps.time[-1] - steps.time[0], _gone(steps)
        if seconds > 0 and done > 0:
            found["steps a second"] = done / seconds
    for name, words in (("step_time", "step time, median (s)"), ("throughput", "throughput, median")):
        told = [number for number in (series[name].value if name in series else ()) if math.isfinite(number)]
        if told:
            found[words] = statistics.median(told)
    return found


def _gone(steps: Series) -> float:
    """How many steps were made: a step that is less than the one before is the first of a new epoch."""
    numbers = [number for number in steps.value if math.isfinite(number)]
    gone = 0.0
    for before, after in pairwise(numbers):
        gone += after - before if after >= before else after
    return gone
