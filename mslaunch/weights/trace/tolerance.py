"""By how much two tensors differ, and by how much they may."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mslaunch.errors import RequestError
from mslaunch.weights.trace.trace_folder import Recorded, Trace


@dataclass(frozen=True, slots=True, order=True)
class ToleranceLimits:
    """What outputs of a type may differ by: from the beginning, and at most where differences grow slowly."""

    least: float
    most: float


FLOAT = ToleranceLimits(1e-5, 1e-3)
BY_TYPE = {
    "float16": ToleranceLimits(1e-2, 1e-1),
    "bfloat16": ToleranceLimits(1e-2, 1e-1),
    "float8": ToleranceLimits(1e-1, 0.5),
}
"""By the beginning of a type's name; all others are FLOAT."""
GROWTH = 30
"""An output may differ so many times as much as all before it did: rounding adds up, a mistake jumps."""


def limits_of(*tensors: Recorded) -> ToleranceLimits:
    """Return the limits of the coarsest type."""
    coarse = (limits for name, limits in BY_TYPE.items() for tensor in tensors if tensor.dtype.startswith(name))
    return max(coarse, default=FLOAT)


def allowed(limits: ToleranceLimits, before: float) -> float:
    """Return what an output may differ by where the ones before it differ by up to `before`."""
    return min(limits.most, max(limits.least, GROWTH * before))


def measure(ours: Trace, first: Recorded, theirs: Trace, second: Recorded) -> float | None:
    """Return the largest difference relative to the largest value; None where the shapes differ.

    Where not all values are kept it is the largest that is certain: of the values that both have kept, and by the
    statistics of all values, none of which can differ by more than the values do.
    """
    if first.shape != second.shape:
        return None
    values = _common(ours, first, theirs, second)
    if first.is_whole and second.is_whole:
        return difference(*values)
    extremes = [abs(number) for side in (first, second) for number in (side.min, side.max) if number is not None]
    largest = max(extremes, default=0.0)
    largest_certain = max(difference(*values, largest), *_of_statistics(first, second, largest))
    return largest_certain if math.isfinite(largest_certain) else math.inf


def _common(ours: Trace, first: Recorded, theirs: Trace, second: Recorded) -> tuple[Any, Any]:
    """Return the values that both have kept."""
    values, other_values = ours.values(first), theirs.values(second)
    if first.is_whole and not second.is_whole:
        values = values[_indices(second)]
    elif second.is_whole and not first.is_whole:
        other_values = other_values[_indices(first)]
    elif first.step != second.step:
        raise RequestError(f"{ours.folder} and {theirs.folder} keep other values of {first.name!r}. Record both again.")
    count = min(first.kept, second.kept)
    return values[:count], other_values[:count]


def _indices(tensor: Recorded) -> Any:
    return np.arange(tensor.kept, dtype=np.int64) * (tensor.step % tensor.size) % tensor.size


def _of_statistics(first: Recorded, second: Recorded, largest: float) -> Iterator[float]:
    if first.not_finite != second.not_finite:
        yield math.inf
    if not largest:
        return
    count = math.sqrt(first.size)
    numbers = [(side.mean, side.std, side.min, side.max, side.norm and side.norm / count) for side in (first, second)]
    for a, b in zip(*numbers, strict=True):
        if a is not None and b is not None:
            yield abs(a / largest - b / largest)


def difference(first: Any, second: Any, scale: float = 0.0) -> float:
    """Return the largest difference, relative to the largest value or `scale`; infinite where only one is finite."""
    kind = np.complex128 if "c" in (first.dtype.kind, second.dtype.kind) else np.float64
    a, b = first.astype(kind), second.astype(kind)
    finite = np.isfinite(a)
    odd = a[~finite]
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(odd, b[~finite], equal_nan=True):
        return math.inf
    a, b = a[finite], b[finite]
    if not a.size:
        return 0.0
    largest = max(float(np.abs(a).max()), float(np.abs(b).max()), scale)
    # Divided first: the difference of two large values may be too large for a number.
    return float(np.abs(a / largest - b / largest).max()) if largest else 0.0
