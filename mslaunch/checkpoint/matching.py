"""Finds for each parameter its partner in the other framework's network: by what their layers call it, and by shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from mslaunch.checkpoint import weights as change
from mslaunch.checkpoint.layout import Shape
from mslaunch.checkpoint.tensor import shape_words
from mslaunch.checkpoint.verify import is_derived
from mslaunch.checkpoint.weights import Weight
from mslaunch.errors import RequestError

SHOWN = 8
_CONV1D = 2
"""The dimension that MindSpore's Conv1d has on top of PyTorch's; its size is 1."""
TO_MINDSPORE = {
    "weight": ("weight", "gamma", "embedding_table", "embedding_weight", "w"),
    "bias": ("bias", "beta"),
    "running_mean": ("moving_mean",),
    "running_var": ("moving_variance",),
}
"""What MindSpore's layers call a parameter, by what PyTorch's call it."""
TO_PYTORCH = {theirs: (ours,) for ours, names in TO_MINDSPORE.items() for theirs in names}
_EITHER_WAY = {**TO_PYTORCH, **TO_MINDSPORE}
"""What the layers of the other framework call a parameter, whichever of the two has named it."""
_ONLY_PYTORCH = ("num_batches_tracked",)
"""Counters of PyTorch's layers that MindSpore's do not have."""
_OF_TRAINING = ("global_step", "learning_rate", "beta1_power", "beta2_power", "momentum", "epoch_num", "step_num")
"""Values of a training that its checkpoints hold beside the network."""

Wanted = Mapping[str, Shape | None]
"""The parameters of a network, with their shapes where these are known."""


@dataclass(frozen=True, slots=True)
class Match:
    """What found its partner, under its new name, and a sentence for whatever did not."""

    weights: dict[str, Weight]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two sets of weights whose partners have the same names: those of the second."""

    first: dict[str, Weight]
    second: dict[str, Weight]
    renamed: dict[str, str]
    """The names of the first that were changed, and what they became."""


def match_names(
    weights: Mapping[str, Weight],
    wanted: Wanted,
    words: Mapping[str, tuple[str, ...]],
    tied: Mapping[str, Sequence[str]] | None = None,
) -> Match:
    """Give each weight the name of its partner, and its shape; `words` is one of the two tables above.

    Of weights that are tied, one partner is enough; `tied` are those of the wanted ones.
    """
    taken, alone = _find_partners(weights, wanted, words)
    for name, others in (tied or {}).items():
        if name not in taken and (sources := [taken[other] for other in others if other in taken]):
            taken[name] = sources[0]
    known = set(taken)
    missing = [
        name
        for name in wanted
        if name not in taken and name not in _OF_TRAINING and not is_derived(name, known) and not _is_counter(name)
    ]
    made = {new: _fitted(change.rename(weights[old], new), wanted[new]) for new, old in taken.items()}
    shapes = _other_shapes(weights, {name: wanted[name] for name in missing}, alone, words)
    rest = {name: why for name, why in alone.items() if name not in shapes}
    unmatched = [name for name in missing if name not in shapes.values()]
    mismatches = (_shape_problem(name, weights[name].shape, new, wanted[new]) for name, new in shapes.items())
    return Match(made, (*mismatches, *_problems(weights, wanted, rest, unmatched)))


def pair_names(first: Mapping[str, Weight], second: Mapping[str, Weight]) -> Pairs:
    """Pair two sets of weights for a comparison: equal names are partners, the others are matched as by an import."""
    rest = {name: weight for name, weight in first.items() if name not in second}
    wanted = {name: weight.shape for name, weight in second.items() if name not in first}
    taken, _ = _find_partners(rest, wanted, _EITHER_WAY)
    renamed = {old: new for new, old in taken.items()}
    common = first.keys() & second.keys()
    unneeded = _unneeded(first, common | renamed.keys(), second), _unneeded(second, common | taken.keys(), first)
    made: dict[str, Weight] = {}
    for old, weight in first.items():
        if old not in unneeded[0]:
            new = renamed.get(old, old)
            shape = second[new].shape if new in second and not weight.packed else weight.shape
            made[new] = _fitted(change.rename(weight, new), shape if _fits(weight.shape, shape) else None)
    return Pairs(made, {name: one for name, one in second.items() if name not in unneeded[1]}, renamed)


def _unneeded(weights: Mapping[str, Weight], paired: Set[str], others: Mapping[str, Weight]) -> set[str]:
    """Names without a partner that need none: tied to a paired one, or counters where the others have no counter."""
    tied, has_counters = tied_names(weights), any(map(_is_counter, others))
    return {
        name
        for name in weights.keys() - paired
        if not paired.isdisjoint(tied.get(name, ())) or (_is_counter(name) and not has_counters)
    }


def _find_partners(
    weights: Mapping[str, Weight], wanted: Wanted, words: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return which weight each wanted name gets, and why the others get none."""
    endings = _by_ending(wanted)
    partners: dict[str, list[str]] = defaultdict(list)
    alone: dict[str, str] = {}
    without: list[str] = []
    for name, weight in weights.items():
        found = _partners(name, weight, wanted, endings, words)
        if len(found) == 1:
            partners[found[0]].append(name)
        elif found:
            alone[name] = f"fits {' and '.join(found[:3])}"
        elif not _is_counter(name):
            without.append(name)
    taken = {partner: names[0] for partner, names in partners.items() if len(names) == 1}
    tied, placed = tied_names(weights), set(taken.values())
    alone |= {name: "has no partner" for name in without if placed.isdisjoint(tied.get(name, ()))}
    for partner, names in partners.items():
        if len(names) > 1:
            alone |= {name: f"is one of {len(names)} that fit {partner}" for name in names}
    return taken, alone


def tied_names(weights: Mapping[str, Weight]) -> dict[str, list[str]]:
    """The names of all weights that have the same bytes, for each of them."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name, weight in weights.items():
        if weight.pieces and weight.nbytes:
            groups[weight.dtype, weight.pieces].append(name)
    return {name: names for names in groups.values() if len(names) > 1 for name in names}


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] in _ONLY_PYTORCH


def _by_ending(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by each of their endings: a network may be wrapped in another, which puts words before all of them."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        parts = name.split(".")
        for index in range(1, len(parts) - 1):
            found[".".join(parts[index:])].append(name)
    return found


def _partners(
    name: str,
    weight: Weight,
    wanted: Wanted,
    endings: Mapping[str, list[str]],
    words: Mapping[str, tuple[str, ...]],
) -> list[str]:
    base, dot, last = name.rpartition(".")
    candidates = list(dict.fromkeys((name, *(f"{base}{dot}{word}" for word in words.get(last, ())))))
    exact = [one for one in candidates if one in wanted and _fits(weight.shape, wanted[one])]
    if exact:
        return exact
    longer = [one for candidate in candidates for one in endings.get(candidate, ())]
    parts = [candidate.split(".") for candidate in candidates]
    shorter = [".".join(part[index:]) for part in parts for index in range(1, len(part) - 1)]
    found = dict.fromkeys(one for one in (*longer, *shorter) if one in wanted and _fits(weight.shape, wanted[one]))
    return list(found)


def _fits(shape: Shape, wanted: Shape | None) -> bool:
    return wanted is None or shape == wanted or _with_dimension(shape) == wanted or _with_dimension(wanted) == shape


def _with_dimension(shape: Shape) -> Shape | None:
    """The shape of a Conv1d's weight in MindSpore, given that in PyTorch."""
    return (*shape[:_CONV1D], 1, *shape[_CONV1D:]) if len(shape) == 3 else None


def _fitted(weight: Weight, wanted: Shape | None) -> Weight:
    if wanted is None or weight.shape == wanted:
        return weight
    longer = len(wanted) > len(weight.shape)
    return change.insert_dimension(weight, _CONV1D) if longer else change.remove_dimension(weight, _CONV1D)


def _other_shapes(
    weights: Mapping[str, Weight], missing: Wanted, alone: Iterable[str], words: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return the weights whose only fault is their shape, each with the wanted name that it would get."""
    of_any_shape = dict.fromkeys(missing)
    endings = _by_ending(missing)
    found = {name: _partners(name, weights[name], of_any_shape, endings, words) for name in alone}
    single = {name: partners[0] for name, partners in found.items() if len(partners) == 1}
    return {name: new for name, new in single.items() if not _fits(weights[name].shape, missing[new])}


def _shape_problem(name: str, shape: Shape, new: str, wanted: Shape | None) -> str:
    what = name if name == new else f"{name}, {new}"
    hint = "; `transpose: true` in a rule?" if wanted == shape[::-1] else ""
    return f"{what}: shape {shape_words(shape)}, wanted {_shape_words(wanted)}{hint}"


def _problems(
    weights: Mapping[str, Weight], wanted: Wanted, alone: Mapping[str, str], missing: list[str]
) -> Iterator[str]:
    for count, (name, why) in enumerate(alone.items()):
        near = _near(name, missing) if count < SHOWN else []
        shown = [f"{one} ({_shape_words(wanted[one])})" for one in near]
        yield f"{name} ({weights[name].words()}) {why}{_nearest(shown)}"
    for count, name in enumerate(missing):
        near = _near(name, list(alone)) if count < SHOWN else []
        shown = [f"{one} ({weights[one].words()})" for one in near]
        yield f"{name} ({_shape_words(wanted[name])}) gets no weights{_nearest(shown)}"


def _near(name: str, others: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, others[:2000], n=2, cutoff=0.5)


def _nearest(shown: list[str]) -> str:
    return f"; nearest: {', '.join(shown)}" if shown else ""


def _shape_words(shape: Shape | None) -> str:
    return "of any shape" if shape is None else shape_words(shape)


def guess_names(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Rename what can only be a normalisation or an embedding; without the network, the rest keeps its name."""
    made: dict[str, Weight] = {}
    for name, weight in weights.items():
        base, dot, last = name.rpartition(".")
        if _is_counter(name):
            continue
        _put(made, weights, weight, f"{base}{dot}{_guess(weights, base, last, weight)}")
    return made


def _put(made: dict[str, Weight], weights: Mapping[str, Weight], weight: Weight, new: str) -> None:
    if new in made or (new in weights and new != weight.name):
        raise RequestError(
            f"{new}: {weight.name} would get this name, and another parameter has it or gets it. Give --names RULES."
        )
    made[new] = change.rename(weight, new)


def _guess(weights: Mapping[str, Weight], base: str, last: str, weight: Weight) -> str:
    if last.startswith("running_"):
        return TO_MINDSPORE.get(last, (last,))[0]
    one, other = weights.get(f"{base}.weight"), weights.get(f"{base}.bias")
    is_norm = f"{base}.running_mean" in weights or (one and other and len(one.shape) == len(other.shape) == 1)
    if is_norm and last in ("weight", "bias"):
        return "gamma" if last == "weight" else "beta"
    layer = base.rpartition(".")[2].lower()
    if last == "weight" and len(weight.shape) == 2 and other is None and ("emb" in layer or layer in ("wte", "wpe")):
        return "embedding_table"
    return last


def plain_names(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """Give parameters the words of PyTorch's layers; each of MindSpore's has one."""
    made: dict[str, Weight] = {}
    for name, weight in weights.items():
        base, dot, last = name.rpartition(".")
        new = f"{base}{dot}{TO_PYTORCH.get(last, (last,))[0]}"
        _put(made, weights, weight, new)
    return made
