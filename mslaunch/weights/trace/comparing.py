"""Two traces compared: each output of one network beside its partner in the other, in order of execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mslaunch.errors import RequestError
from mslaunch.weights.names import read_rules
from mslaunch.weights.trace.cause import Given, Pair, label, where_to_look
from mslaunch.weights.trace.pairing import Call, Side, collect_notes, make_sides, pair_up
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
    one, other = make_sides(_read(first), _read(second), read_rules(names) if names else [])
    together = _match(one, other)
    if not together:
        raise RequestError(
            f"{first} and {second}: no module of one has the name of one of the other ({_few(one.trace)}; "
            f"{_few(other.trace)}). Write rules for the names and give --names RULES."
        )
    pairs = _measure(one.trace, other.trace, together, tolerance)
    left = _left(one, [pair.first for pair in pairs]), _left(other, [pair.second for pair in pairs])
    return TraceComparison(
        pairs,
        only_first=tuple(map(label, left[0])),
        only_second=tuple(map(label, left[1])),
        notes=tuple(collect_notes(one, other, pairs, left)),
        ended=tuple(
            f"{trace.folder}: ended by {trace.ended_by}" for trace in (one.trace, other.trace) if trace.ended_by
        ),
        is_whole_compared=_is_whole_compared(one, other),
        hint=_find_hint(one, other, pairs),
    )


def _read(folder: Path) -> Trace:
    trace = read_trace(folder)
    if not trace.outputs:
        why = f" (ended by {trace.ended_by})" if trace.ended_by else ""
        raise RequestError(f"{folder}: no module has returned{why}. Call the network inside of the `with`.")
    return trace


def _match(one: Side, other: Side) -> list[tuple[Recorded, Recorded]]:
    found = [pair for call, tensors in one.outputs.items() for pair in pair_up(tensors, other.outputs.get(call, ()))]
    return sorted(found, key=lambda pair: pair[0].order)


def _measure(
    one: Trace, other: Trace, together: Sequence[tuple[Recorded, Recorded]], tolerance: float | None
) -> tuple[Pair, ...]:
    """Measure all pairs in order; what is allowed grows with what is the same, not with what is different."""
    pairs, before, limits = [], 0.0, limits_of()
    for first, second in together:
        limits = max(limits, limits_of(first, second))  # all that follows has been rounded by a coarser type
        limit = allowed(limits, before) if tolerance is None else tolerance
        pairs.append(pair := Pair(first, second, measure(one, first, other, second), limit))
        if pair.is_same and pair.difference is not None:
            before = max(before, pair.difference)
    return tuple(pairs)


def _left(side: Side, paired: Sequence[Recorded]) -> list[Recorded]:
    taken = set(map(id, paired))
    return [one for one in sorted(side.trace.outputs, key=lambda one: one.order) if id(one) not in taken]


def _is_whole_compared(one: Side, other: Side) -> bool:
    """Whether each call of the networks has an output with a partner, and not both have one without."""
    for call in {**one.outputs, **other.outputs}:
        first, second = one.outputs.get(call, ()), other.outputs.get(call, ())
        count = len(pair_up(first, second))
        if call.inside == "" and (not count or count < min(len(first), len(second))):
            return False
    return True


def _find_hint(one: Side, other: Side, pairs: Sequence[Pair]) -> str | None:
    different = next((pair for pair in pairs if not pair.is_same), None)
    if different is None:
        return None

    def given(call: Call) -> Given | None:
        together = pair_up(one.inputs.get(call, ()), other.inputs.get(call, ()))
        found = [Given(first.place, measure(one.trace, first, other.trace, second)) for first, second in together]
        return max(found, key=lambda one: math.inf if one.difference is None else one.difference, default=None)

    return where_to_look(pairs, different, given(one.names.call_of(different.first)), given(Call("", "", 0)))


def _few(trace: Trace) -> str:
    names = list(dict.fromkeys(output.name for output in trace.outputs if output.name))
    return ", ".join(names[:3]) or "none"
