"""Two traces compared: each output of one network beside its partner in the other, in order of execution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mslaunch.errors import RequestError
from mslaunch.weights.names import read_rules
from mslaunch.weights.trace.pairing import (
    Call,
    InputDifference,
    Pair,
    Side,
    collect_notes,
    label,
    make_sides,
    pair_up,
    where_to_look,
)
from mslaunch.weights.trace.trace_folder import Recorded, Trace, read_trace


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


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Two networks, output by output."""

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    notes: tuple[str, ...]
    ended: tuple[str, ...]
    """Of each trace that an exception has ended, which."""
    is_whole_compared: bool
    hint: str | None

    @property
    def first_different(self) -> Pair | None:
        return next((pair for pair in self.pairs if not pair.is_same), None)

    @property
    def only_whole(self) -> bool:
        """Whether the networks' own outputs alone were compared, though both have modules."""
        return bool(self.only_first and self.only_second) and not any(
            pair.first.name or pair.second.name for pair in self.pairs
        )

    @property
    def is_same(self) -> bool:
        return self.first_different is None and self.is_whole_compared and not self.only_whole and not self.ended


def compare_traces(
    first: Path, second: Path, names: str | None = None, tolerance: float | None = None
) -> TraceComparison:
    """Compare two trace folders; `names` are rules for the names of the first, `tolerance` is by default by type."""
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise RequestError(f"--tolerance {tolerance}: a number from 0 on is wanted, for example 1e-5.")
    ours, theirs = make_sides(_read(first), _read(second), read_rules(names) if names else [])
    together = [
        pair for call, tensors in ours.outputs.items() for pair in pair_up(tensors, theirs.outputs.get(call, ()))
    ]
    together.sort(key=lambda pair: pair[0].order)
    if not together:
        raise RequestError(
            f"{first} and {second}: no module of one has the name of one of the other ({_few(ours.trace)}; "
            f"{_few(theirs.trace)}). Write rules for the names and give --names RULES."
        )
    pairs = _measure(ours.trace, theirs.trace, together, tolerance)
    left = _left(ours, [pair.first for pair in pairs]), _left(theirs, [pair.second for pair in pairs])
    return TraceComparison(
        pairs,
        only_first=tuple(map(label, left[0])),
        only_second=tuple(map(label, left[1])),
        notes=tuple(collect_notes(ours, theirs, pairs, left)),
        ended=tuple(
            f"{trace.folder}: ended by {trace.ended_by}" for trace in (ours.trace, theirs.trace) if trace.ended_by
        ),
        is_whole_compared=_is_whole_compared(ours, theirs),
        hint=_find_hint(ours, theirs, pairs),
    )


def _read(folder: Path) -> Trace:
    trace = read_trace(folder)
    if not trace.outputs:
        why = f" (ended by {trace.ended_by})" if trace.ended_by else ""
        raise RequestError(f"{folder}: no module has returned{why}. Call the network inside of the `with`.")
    return trace


def _measure(
    ours: Trace, theirs: Trace, together: Sequence[tuple[Recorded, Recorded]], tolerance: float | None
) -> tuple[Pair, ...]:
    """Measure all pairs in order; what is allowed grows with what is the same, not with what is different."""
    pairs, before, limits = [], 0.0, limits_of()
    for first, second in together:
        limits = max(limits, limits_of(first, second))  # all that follows has been rounded by a coarser type
        limit = allowed(limits, before) if tolerance is None else tolerance
        pairs.append(pair := Pair(first, second, measure(ours, first, theirs, second), limit))
        if pair.is_same and pair.difference is not None:
            before = max(before, pair.difference)
    return tuple(pairs)


def _left(side: Side, paired: Sequence[Recorded]) -> list[Recorded]:
    partners = set(map(id, paired))
    return [
        tensor for tensor in sorted(side.trace.outputs, key=lambda tensor: tensor.order) if id(tensor) not in partners
    ]


def _is_whole_compared(ours: Side, theirs: Side) -> bool:
    """Whether each call of the networks has an output with a partner, and not both have one without."""
    for call in {**ours.outputs, **theirs.outputs}:
        first, second = ours.outputs.get(call, ()), theirs.outputs.get(call, ())
        count = len(pair_up(first, second))
        if call.inside == "" and (not count or count < min(len(first), len(second))):
            return False
    return True


def _find_hint(ours: Side, theirs: Side, pairs: Sequence[Pair]) -> str | None:
    different = next((pair for pair in pairs if not pair.is_same), None)
    if different is None:
        return None

    def input_difference(call: Call) -> InputDifference | None:
        together = pair_up(ours.inputs.get(call, ()), theirs.inputs.get(call, ()))
        differences = [
            InputDifference(first.place, measure(ours.trace, first, theirs.trace, second)) for first, second in together
        ]
        return max(
            differences,
            key=lambda difference: math.inf if difference.difference is None else difference.difference,
            default=None,
        )

    return where_to_look(
        pairs, different, input_difference(ours.names.call_of(different.first)), input_difference(Call("", "", 0))
    )


def _few(trace: Trace) -> str:
    names = list(dict.fromkeys(output.name for output in trace.outputs if output.name))
    return ", ".join(names[:3]) or "none"
