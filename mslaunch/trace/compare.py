"""Two traces compared: each output of one network beside its partner in the other, in order of execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mslaunch.checkpoint.names import Rule, expand, first_match, read_rules
from mslaunch.errors import RequestError
from mslaunch.trace.reading import Output, Trace, read_trace
from mslaunch.trace.wrapping import find_wrappers, unwrap

TOLERANCE = 1e-3
PARAMETERS = ("", ".weight", ".bias")
"""Rules are written for parameters: what becomes of a module's weight tells what becomes of the module."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An output and its partner."""

    first: Output
    second: Output
    difference: float | None
    """The largest difference divided by the largest value; None where the shapes differ, infinite for a stray NaN."""
    is_same: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two networks, output by output."""

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    notes: tuple[str, ...]

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
        return self.first_different is None and not self.only_whole


def compare_traces(first: Path, second: Path, names: str | None = None, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two trace folders; `names` are rules for the names of the first."""
    if not 0 <= tolerance < math.inf:
        raise RequestError(f"--tolerance {tolerance}: a number from 0 on is wanted, for example {TOLERANCE}.")
    one, other = read_trace(first), read_trace(second)
    rules = read_rules(names) if names else []
    new_names = {output.name: rename(output.name, rules) for output in one.outputs}
    before = find_wrappers(set(new_names.values()), {output.name for output in other.outputs})
    partners = {_key(output.name, output, before[1]): output for output in other.outputs}
    pairs, only_first = [], []
    for output in sorted(one.outputs, key=lambda output: output.order):
        partner = partners.pop(_key(new_names[output.name], output, before[0]), None)
        if partner is None:
            only_first.append(label(output))
        else:
            pairs.append(_pair(one, output, other, partner, tolerance))
    if not pairs:
        raise RequestError(
            f"{first} and {second}: no module of one has the name of one of the other ({_few(one)}; {_few(other)}). "
            f"Write rules for the names and give --names RULES."
        )
    notes = [f"{trace.folder}: {note}" for trace in (one, other) for note in trace.notes]
    wrapped = zip((one, other), before, strict=True)
    notes += [f"{trace.folder}: `{word}.` before its names is left out" for trace, word in wrapped if word]
    return Comparison(tuple(pairs), tuple(only_first), tuple(map(label, partners.values())), tuple(notes))


def _key(name: str, output: Output, before: str) -> tuple[str | None, str, int, str]:
    """What an output and its partner have in common; what is outside of a wrapped network has its own name."""
    inside = unwrap(name, before)
    return (inside, "" if inside is not None else name, output.call, output.output)


def rename(name: str, rules: Sequence[Rule]) -> str:
    """Return a module's name by the first rule that matches it, or that matches its weight or bias."""
    simple = [rule for rule in rules if len(rule.sources) == len(rule.targets) == 1]
    for ending in PARAMETERS:
        if found := first_match(simple, name + ending):
            rule, match = found
            new = expand(rule, match, rule.targets[0])
            return new.rpartition(".")[0] if ending else new
    return name


def label(output: Output) -> str:
    """`layer1.0.relu`, with the number of a further call and the place in a tuple: `relu (call 2) [0]`."""
    call = f" (call {output.call + 1})" if output.call else ""
    place = f" [{output.output}]" if output.output else ""
    return f"{output.name or '(network)'}{call}{place}"


def _few(trace: Trace) -> str:
    names = list(dict.fromkeys(output.name for output in trace.outputs if output.name))
    return ", ".join(names[:3]) or "none"


def _pair(one: Trace, first: Output, other: Trace, second: Output, tolerance: float) -> Pair:
    if first.shape != second.shape:
        return Pair(first, second, None, False)
    # Kept values of both: those whose numbers are multiples of both steps.
    common = math.lcm(first.step, second.step)
    found = difference(one.values(first)[:: common // first.step], other.values(second)[:: common // second.step])
    return Pair(first, second, found, found <= tolerance)


def difference(first: Any, second: Any) -> float:
    """Return the largest difference, relative to the largest value; infinite where only one is finite."""
    kind = np.complex128 if "c" in (first.dtype.kind, second.dtype.kind) else np.float64
    one, other = first.astype(kind), second.astype(kind)
    finite = np.isfinite(one)
    odd = one[~finite]
    if not np.array_equal(finite, np.isfinite(other)) or not np.array_equal(odd, other[~finite], equal_nan=True):
        return math.inf
    one, other = one[finite], other[finite]
    if not one.size:
        return 0.0
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()))
    # Divided first: the difference of two large values may be too large for a number.
    return float(np.abs(one / largest - other / largest).max()) if largest else 0.0
