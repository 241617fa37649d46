"""Finds for each parameter its partner in the other framework's network: by what their layers call it, and by shape."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mslaunch.checkpoint.formats.tensor import shape_words
from mslaunch.checkpoint.moving import weights as change
from mslaunch.checkpoint.moving.weights import Weight
from mslaunch.checkpoint.sharding.strategy import Shape
from mslaunch.weights.layer_names import (
    EITHER_WAY,
    STATISTICS,
    LayerTerms,
    is_counter,
    is_embedding,
    is_of_training,
    partner_names,
)
from mslaunch.weights.names import first_of

CONV1D = 2
"""The dimension that MindSpore's Conv1d has on top of PyTorch's; its size is 1."""

Parameters = Mapping[str, Shape | None]
"""The parameters of a network, with their shapes where these are known."""


@dataclass(frozen=True, slots=True)
class _Partners:
    """Which weight each parameter gets, and why the others get none."""

    sources: dict[str, str]
    alone: dict[str, str]
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Search:
    """The parameters that have no partner yet, as each way to find one needs them."""

    parameters: Parameters
    terms: LayerTerms
    wrappers: tuple[str, str]
    """What stands before all names of the weights, and before all names of the parameters."""
    endings: Mapping[str, list[str]]


def _find_partners(weights: Mapping[str, Weight], parameters: Parameters, terms: LayerTerms) -> _Partners:
    """Pair weights and parameters; closer ways to match go first."""
    sources: dict[str, str] = {}
    alone: dict[str, str] = {}
    left = list(weights)
    wrappers = _wrapper(weights), _wrapper(parameters)
    for way in _WAYS:
        search = _search({name: shape for name, shape in parameters.items() if name not in sources}, terms, wrappers)
        claims: dict[str, list[str]] = defaultdict(list)
        for name in left:
            candidates = _fitting(way(name, search), search.parameters, weights[name].shape)
            if len(candidates) == 1:
                claims[candidates[0]].append(name)
            elif candidates:
                alone[name] = f"fits {' and '.join(candidates[:3])}"
        for partner, names in claims.items():
            if len(names) == 1:
                sources[partner] = names[0]
            else:
                alone |= {name: f"is one of {len(names)} that fit {partner}" for name in names}
        placed = {*sources.values(), *alone}
        left = [name for name in left if name not in placed]
    return _Partners(sources, alone, tuple(name for name in left if not is_counter(name)))


def _fitting(candidates: Iterable[str], parameters: Parameters, shape: Shape) -> list[str]:
    return [name for name in dict.fromkeys(candidates) if name in parameters and _fits(shape, parameters[name])]


def _fits(shape: Shape, expected: Shape | None) -> bool:
    return (
        expected is None
        or shape == expected
        or _with_dimension(shape) == expected
        or _with_dimension(expected) == shape
    )


def _with_dimension(shape: Shape) -> Shape | None:
    """The shape of a Conv1d's weight in MindSpore, given that in PyTorch."""
    return (*shape[:CONV1D], 1, *shape[CONV1D:]) if len(shape) == 3 else None


def _search(parameters: Parameters, terms: LayerTerms, wrappers: tuple[str, str]) -> _Search:
    endings: dict[str, list[str]] = defaultdict(list)
    for name in parameters:
        parts = name.split(".")
        for index in range(1, len(parts) - 1):
            endings[".".join(parts[index:])].append(name)
    return _Search(parameters, terms, wrappers, endings)


def _wrapper(names: Iterable[str]) -> str:
    """The words before all names of a network that is inside of another; the name of its only layer is none."""
    every = set(names)
    layers = [name.split(".")[:-1] for name in every if not is_of_training(name, every)] or [[]]
    ends = zip(min(layers), max(layers), strict=False)
    common = [word for word, _ in takewhile(lambda pair: pair[0] == pair[1], ends)]
    if common and max(map(len, layers)) == len(common):
        common.pop()
    return "".join(f"{word}." for word in common)


def _same_name(name: str, _: _Search) -> list[str]:
    return [name]


def _same_place(name: str, search: _Search) -> list[str]:
    return partner_names(name, search.terms)


def _same_place_in_wrapper(name: str, search: _Search) -> list[str]:
    own, theirs = search.wrappers
    bare = (name, name.removeprefix(own))
    return [f"{theirs}{partner}" for start in bare for partner in partner_names(start, search.terms)]


def _same_ending(name: str, search: _Search) -> list[str]:
    candidates = partner_names(name, search.terms)
    longer = [partner for candidate in candidates for partner in search.endings.get(candidate, ())]
    parts = [candidate.split(".") for candidate in candidates]
    shorter = [".".join(part[index:]) for part in parts for index in range(1, len(part) - 1)]
    return [*longer, *shorter]


_WAYS: tuple[Callable[[str, _Search], list[str]], ...] = (
    _same_name,
    _same_place,
    _same_place_in_wrapper,
    _same_ending,
)


SHOWN = 8
_SCALES = ("gamma", "weight")
"""What normalisations call the parameter that every one of them has."""


@dataclass(frozen=True, slots=True)
class NameMatch:
    """What found its partner, under its new name, and a sentence for whatever did not."""

    weights: dict[str, Weight]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Sentences that a user should know, though nothing is wrong."""
    transposed: tuple[str, ...] = ()


def match_names(
    weights: Mapping[str, Weight],
    parameters: Parameters,
    terms: LayerTerms,
    tied: Mapping[str, Sequence[str]] | None = None,
) -> NameMatch:
    """Give each weight the name of its partner, and its shape; `words` is TO_MINDSPORE or TO_PYTORCH.

    Of weights that are tied, one partner is enough; `tied` are those of the wanted ones.
    """
    partners = _find_partners(weights, parameters, terms)
    sources, alone = partners.sources, partners.alone
    for name, others in (tied or {}).items():
        if name not in sources and (tied_sources := [sources[other] for other in others if other in sources]):
            sources[name] = tied_sources[0]
    missing = [
        name
        for name in parameters
        if name not in sources and not is_of_training(name, parameters) and not is_counter(name)
    ]
    statistics = _unused_statistics(missing, sources, weights)
    statistics += _unused_statistics(partners.without, {old: new for new, old in sources.items()}, parameters)
    missing = [name for name in missing if name not in statistics]
    tied_weights, placed = tied_names(weights), set(sources.values())
    for name in partners.without:
        if name not in statistics and placed.isdisjoint(tied_weights.get(name, ())):
            alone[name] = "has no partner"
    made = {new: _fitted(change.rename(weights[old], new), parameters[new]) for new, old in sources.items()}
    shapes = _other_shapes(weights, parameters, missing, alone, terms)
    rest = {name: why for name, why in alone.items() if name not in shapes}
    unmatched = [name for name in missing if name not in shapes.values()]
    mismatches = (_shape_problem(name, weights[name].shape, new, parameters[new]) for name, new in shapes.items())
    problems = (*mismatches, *_problems(weights, parameters, rest, unmatched, sources))
    transposed = tuple(name for name, new in shapes.items() if parameters[new] == weights[name].shape[::-1])
    notes: tuple[str, ...] = ()
    if statistics:
        notes = (
            f"{len(statistics)} statistics of normalisations ({first_of(statistics)}) have no partner and need none: "
            f"the other network's layers keep none, as InstanceNorm in PyTorch",
        )
    return NameMatch(made, problems, notes, transposed)


def pair_names(
    first: Mapping[str, Weight], second: Mapping[str, Weight]
) -> tuple[dict[str, Weight], dict[str, Weight], dict[str, str]]:
    """Pair two sets of weights for a comparison: equal names are partners, the others are matched as by an import.

    Return both, partners under the names of the second, and what the names of the first that were changed became.
    """
    rest = {name: weight for name, weight in first.items() if name not in second}
    parameters = {name: weight.shape for name, weight in second.items() if name not in first}
    sources = _find_partners(rest, parameters, EITHER_WAY).sources
    renamed = {old: new for new, old in sources.items()}
    common = {name: name for name in first if name in second}
    unneeded = _unneeded(first, common | renamed, second), _unneeded(second, common | sources, first)
    made: dict[str, Weight] = {}
    for old, weight in first.items():
        if old not in unneeded[0]:
            new = renamed.get(old, old)
            shape = second[new].shape if new in second and not weight.packed else weight.shape
            made[new] = _fitted(change.rename(weight, new), shape if _fits(weight.shape, shape) else None)
    return made, {name: weight for name, weight in second.items() if name not in unneeded[1]}, renamed


def _unneeded(weights: Mapping[str, Weight], partners: Mapping[str, str], others: Mapping[str, Weight]) -> set[str]:
    """Names without a partner that need none: tied to one that has one, or what the others' layers do not keep."""
    tied, has_counters = tied_names(weights), any(map(is_counter, others))
    alone = [name for name in weights if name not in partners]
    return {
        *(name for name in alone if any(other in partners for other in tied.get(name, ()))),
        *(name for name in alone if is_counter(name) and not has_counters),
        *_unused_statistics(alone, partners, others),
    }


def _unused_statistics(names: Iterable[str], partners: Mapping[str, str], others: Container[str]) -> list[str]:
    """Statistics of normalisations whose partners keep none: PyTorch's InstanceNorm does not by default."""
    statistics: list[str] = []
    for name in names:
        base, _, last = name.rpartition(".")
        if last in STATISTICS:
            layers = [partners[scale].rpartition(".")[0] for word in _SCALES if (scale := f"{base}.{word}") in partners]
            if layers and not any(f"{layers[0]}.{word}" in others for word in STATISTICS):
                statistics.append(name)
    return statistics


def tied_names(weights: Mapping[str, Weight]) -> dict[str, list[str]]:
    """The names of all weights that have the same bytes, for each of them."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, weight in weights.items():
        if weight.pieces and weight.nbytes:
            groups[weight.dtype, weight.pieces].append(name)
    return {name: names for names in groups.values() if len(names) > 1 for name in names}


def _fitted(weight: Weight, expected: Shape | None) -> Weight:
    if expected is None or weight.shape == expected:
        return weight
    longer = len(expected) > len(weight.shape)
    return change.insert_dimension(weight, CONV1D) if longer else change.remove_dimension(weight, CONV1D)


def _other_shapes(
    weights: Mapping[str, Weight],
    parameters: Parameters,
    missing: Sequence[str],
    alone: Iterable[str],
    terms: LayerTerms,
) -> dict[str, str]:
    """Return the weights whose only fault is their shape, each with the wanted name that it would get."""
    search = _search(dict.fromkeys(missing), terms, (_wrapper(weights), _wrapper(parameters)))
    shapes: dict[str, str] = {}
    for name in alone:
        ways = (_fitting(way(name, search), search.parameters, ()) for way in _WAYS)
        names = next((names for names in ways if names), [])
        if len(names) == 1 and not _fits(weights[name].shape, parameters[names[0]]):
            shapes[name] = names[0]
    return shapes


def _shape_problem(name: str, shape: Shape, new: str, expected: Shape | None) -> str:
    names = name if name == new else f"{name}, {new}"
    text = f"{names}: shape {shape_words(shape)}, wanted {_shape_words(expected)}"
    if expected == shape[::-1]:
        return f"{text}; `transpose: true` in a rule?"
    return text


def _problems(
    weights: Mapping[str, Weight],
    parameters: Parameters,
    alone: Mapping[str, str],
    missing: list[str],
    sources: Mapping[str, str],
) -> Iterator[str]:
    for count, (name, why) in enumerate(alone.items()):
        near = _near(name, missing) if count < SHOWN else []
        nearest = ", ".join(f"{other} ({_shape_words(parameters[other])})" for other in near)
        hint = f"; nearest: {nearest}" if near else ""
        yield f"{name} ({weights[name].words()}) {why}{hint}"
    for count, name in enumerate(missing):
        near = _near(name, list(alone)) if count < SHOWN else []
        nearest = ", ".join(f"{other} ({weights[other].words()})" for other in near)
        hint = f"; nearest: {nearest}" if near else _tied_words(name, parameters, sources)
        yield f"{name} ({_shape_words(parameters[name])}) gets no weights{hint}"


def _tied_words(name: str, parameters: Parameters, sources: Mapping[str, str]) -> str:
    """Say how a layer gets the weights of the embedding of its shape: files hold tied weights once."""
    shape = parameters[name]
    tables = [new for new, old in sources.items() if parameters[new] == shape and is_embedding(old)]
    if shape is None or len(shape) != 2 or len(tables) != 1:
        return ""
    old, new = sources[tables[0]], tables[0]
    rule = f"{{from: '{re.escape(old)}', to: [{new}, {name}], copy: true}}"
    return f"; of the shape of {old}: tied? Then give a rule {rule}"


def _near(name: str, others: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, others[:2000], n=2, cutoff=0.5)


def _shape_words(shape: Shape | None) -> str:
    return "of any shape" if shape is None else shape_words(shape)
