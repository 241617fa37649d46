"""Two traces compared: each output of one network beside its partner in the other, in order of execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from mslaunch.weights.trace.tolerance import allowed, limits_of, measure
from mslaunch.weights.trace.trace_folder import Recorded, Trace, read_trace


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
    """Whether the outputs of the networks themselves have partners."""
    hint: str | None
    """Where to look for the cause of the first difference."""

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
