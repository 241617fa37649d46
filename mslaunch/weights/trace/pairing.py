"""Which tensors of two networks belong together: by module and call, then by their places or shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from mslaunch.weights.names import NameRule, expand, first_match
from mslaunch.weights.trace.trace_folder import Recorded, Trace


@dataclass(frozen=True, slots=True)
class Pair:
    """An output and its partner."""

    first: Recorded
    second: Recorded
    difference: float | None
    """The largest difference divided by the largest value; None where the shapes differ, infinite for a stray NaN."""
    tolerance: float

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
    outer = different.first.name
    start = f"{outer}." if outer else ""
    if any(pair.first.name.startswith(start) and pair.first.name != outer for pair in pairs[:index]):
        return f"what {name} is given is the same: look at what it computes after {before}"
    return f"what {name} is given is the same: look at {name} itself"


def _amount(inputs: InputDifference) -> str:
    amount = "shape" if inputs.difference is None else f"{inputs.difference:.1e}"
    return f"input {inputs.place}: {amount}"


DEEPEST = 8


def find_wrapper(inner: Set[str], outer: Set[str]) -> tuple[str, int]:
    """Return the words before the outer names that give most inner ones a partner, and how many; none where unsure."""
    votes: Counter[str] = Counter()
    for name in outer:
        parts = name.split(".", DEEPEST)
        for index in range(1, len(parts)):
            if ".".join(parts[index:]) in inner:
                votes[".".join(parts[:index])] += 1
    best = votes.most_common(2)
    if not best or (len(best) > 1 and best[0][1] == best[1][1]):
        return "", 0
    return best[0]


def find_wrappers(first: Set[str], second: Set[str]) -> tuple[str, str]:
    """Return the words to take from the names of the first and of the second, so that more of them are the same."""
    same = len((first & second) - {""})
    before_second, second_count = find_wrapper(first, second)
    before_first, first_count = find_wrapper(second, first)
    if second_count > max(same, first_count):
        return "", before_second
    if first_count > max(same, second_count):
        return before_first, ""
    return "", ""


PARAMETERS = ("", ".weight", ".bias")
"""Rules are written for parameters: what becomes of a module's weight tells what becomes of the module."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module, by the name that both networks have for it."""

    inside: str | None
    """The module's name, empty for the whole network; None for what is outside of a wrapped one."""
    outside: str
    call: int


Calls = Mapping[Call, Sequence[Recorded]]


@dataclass(frozen=True, slots=True)
class Names:
    """How the names of one trace's modules become those that both have."""

    new_names: Mapping[str, str]
    before: str
    """The words of a wrapper, which are left out."""

    def call_of(self, tensor: Recorded) -> Call:
        inside = self.inside(tensor.name)
        return Call(inside, tensor.name if inside is None else "", tensor.call)

    def inside(self, name: str) -> str | None:
        """Return the name that both have; None for what is outside of a wrapper."""
        new = self.new_names.get(name, name)
        if not self.before:
            return new
        if new == self.before:
            return ""
        return new.removeprefix(f"{self.before}.") if new.startswith(f"{self.before}.") else None

    def group(self, tensors: Iterable[Recorded]) -> dict[Call, list[Recorded]]:
        calls: dict[Call, list[Recorded]] = {}
        for tensor in sorted(tensors, key=lambda tensor: tensor.order):
            calls.setdefault(self.call_of(tensor), []).append(tensor)
        return calls


@dataclass(frozen=True, slots=True)
class Side:
    """A trace, its tensors by the names that both networks have."""

    trace: Trace
    names: Names
    inputs: Calls
    outputs: Calls


def make_sides(ours: Trace, theirs: Trace, rules: Sequence[NameRule]) -> tuple[Side, Side]:
    """Find the names that both networks have, by rules for those of the first and without a wrapper's words."""
    modules = {tensor.name for tensor in ours.outputs} | set(ours.not_called)
    new_names = {name: rename(name, rules) for name in modules}
    called = {new_names[tensor.name] for tensor in ours.outputs}
    before = find_wrappers(called, {tensor.name for tensor in theirs.outputs})
    first, second = Names(new_names, before[0]), Names({}, before[1])
    return (
        Side(ours, first, first.group(ours.inputs), first.group(ours.outputs)),
        Side(theirs, second, second.group(theirs.inputs), second.group(theirs.outputs)),
    )


def rename(name: str, rules: Sequence[NameRule]) -> str:
    """Return a module's name by the first rule that matches it, or that matches its weight or bias."""
    simple = [rule for rule in rules if len(rule.sources) == len(rule.targets) == 1]
    for ending in PARAMETERS:
        if hit := first_match(simple, name + ending):
            rule, match = hit
            new = expand(rule, match, rule.targets[0])
            return new.rpartition(".")[0] if ending else new
    return name


def pair_up(first: Sequence[Recorded], second: Sequence[Recorded]) -> list[tuple[Recorded, Recorded]]:
    """Pair the tensors of one call: those with the same place, then by shape where places are of another kind."""
    places = {tensor.place: tensor for tensor in second}
    pairs = [(tensor, places[tensor.place]) for tensor in first if tensor.place in places]
    paired = {tensor.place for tensor, _ in pairs}
    ours = [tensor for tensor in first if tensor.place not in paired]
    theirs = [tensor for tensor in second if tensor.place not in paired]
    if not ours or not theirs or not _are_of_other_kinds(ours, theirs):
        return pairs
    if len(ours) == len(theirs) == 1:
        return [*pairs, (ours[0], theirs[0])]
    for tensor in ours:
        partner = next((candidate for candidate in theirs if candidate.shape == tensor.shape), None)
        if partner is not None:
            pairs.append((tensor, partner))
            theirs.remove(partner)
    return pairs


def _are_of_other_kinds(first: Sequence[Recorded], second: Sequence[Recorded]) -> bool:
    """Whether one side is a lone tensor and the other is not, or one has numbers for places and the other names."""
    kinds = [{_kind(tensor.place) for tensor in side} for side in (first, second)]
    return all(len(kind) == 1 for kind in kinds) and kinds[0] != kinds[1]


def _kind(place: str) -> str:
    if not place:
        return "lone"
    return "number" if place.partition(".")[0].isdecimal() else "name"


SHOWN = 8


def collect_notes(
    ours: Side, theirs: Side, pairs: Sequence[Pair], left: tuple[Sequence[Recorded], Sequence[Recorded]]
) -> Iterator[str]:
    """Say what a reader of the comparison has to know; `left` are the outputs of each side without a partner."""
    for side in (ours, theirs):
        yield from (f"{side.trace.folder}: {note}" for note in side.trace.notes)
    for side in (ours, theirs):
        if side.names.before:
            yield f"{side.trace.folder}: `{side.names.before}.` before its names is left out"
    yield from _not_called(ours, left[0], theirs)
    yield from _not_called(theirs, left[1], ours)
    parts = [pair for pair in pairs if pair.difference is not None and not pair.is_of_all]
    if parts:
        parts_compared = [f"{label(pair.first)}: {pair.compared} of {pair.first.size}" for pair in parts]
        yield f"not every value was kept, so a part and the statistics of all are compared ({few(parts_compared)})"


def _not_called(side: Side, left: Sequence[Recorded], other: Side) -> Iterator[str]:
    """Name the modules of a side without a partner that the other has, but has not called."""
    uncalled = {other.names.inside(name) for name in other.trace.not_called} - {None}
    missing = list(
        dict.fromkeys(tensor.name or "(network)" for tensor in left if side.names.inside(tensor.name) in uncalled)
    )
    if missing:
        yield f"{few(missing)} {'was' if len(missing) == 1 else 'were'} not called in {other.trace.folder}"


def few(names: Sequence[str]) -> str:
    """`a, b and 3 more`."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
