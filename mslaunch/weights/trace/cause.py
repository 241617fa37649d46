"""Where to look for the cause of the first difference: at a module itself, or at what comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mslaunch.weights.trace.trace_folder import Recorded


@dataclass(frozen=True, slots=True)
class Pair:
    """An output and its partner."""

    first: Recorded
    second: Recorded
    difference: float | None
    """The largest difference divided by the largest value; None where the shapes differ, infinite for a stray NaN."""
    tolerance: float
    """What was allowed here."""

    @property
    def compared(self) -> int:
        """How many values both have kept."""
        return min(self.first.kept, self.second.kept)

    @property
    def is_of_all(self) -> bool:
        return self.first.is_whole and self.second.is_whole

    @property
    def is_same(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance


@dataclass(frozen=True, slots=True)
class InputDifference:
    """By how much the inputs of a module's call differ."""

    place: str
    difference: float | None
    """Of the one that differs most; None where the shapes differ."""

    def is_same(self, tolerance: float) -> bool:
        return self.difference is not None and self.difference <= tolerance


def label(tensor: Recorded) -> str:
    """`layer1.0.relu`, with the number of a further call and the place in a tuple: `relu (call 2) [0]`."""
    place = f" [{tensor.place}]" if tensor.place else ""
    return f"{call_label(tensor)}{place}"


def call_label(tensor: Recorded) -> str:
    call = f" (call {tensor.call + 1})" if tensor.call else ""
    return f"{tensor.name or '(network)'}{call}"


def where_to_look(
    pairs: Sequence[Pair], different: Pair, inputs: InputDifference | None, network: InputDifference | None
) -> str | None:
    """Say where the first difference arises, by what its module and the networks were given; None if not known."""
    if inputs is None:
        return None
    name, tolerance = call_label(different.first), different.tolerance
    index = next(index for index, pair in enumerate(pairs) if pair is different)
    before = call_label(pairs[index - 1].first) if index else ""
    if not inputs.is_same(tolerance):
        if network is not None and not network.is_same(tolerance):
            return f"the networks are given other inputs ({_amount(network)}): give both the same"
        between = f"look between {before} and {name}" if before else f"look before {name}"
        return f"what {name} is given differs ({_amount(inputs)}): {between}"
    if before and _has_modules(pairs[:index], different.first.name):
        return f"what {name} is given is the same: look at what it computes after {before}"
    return f"what {name} is given is the same: look at {name} itself"


def _has_modules(pairs: Sequence[Pair], name: str) -> bool:
    start = f"{name}." if name else ""
    return any(pair.first.name.startswith(start) and pair.first.name != name for pair in pairs)


def _amount(inputs: InputDifference) -> str:
    amount = "shape" if inputs.difference is None else f"{inputs.difference:.1e}"
    return f"input {inputs.place}: {amount}"
