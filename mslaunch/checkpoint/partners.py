"""Which parameter of one network is which of another: equal names first, then other words, wrappers and endings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from mslaunch.checkpoint.layer_names import Words, is_counter, partner_names
from mslaunch.checkpoint.layout import Shape
from mslaunch.checkpoint.training_state import is_of_training
from mslaunch.checkpoint.weights import Weight

CONV1D = 2
"""The dimension that MindSpore's Conv1d has on top of PyTorch's; its size is 1."""

Wanted = Mapping[str, Shape | None]
"""The parameters of a network, with their shapes where these are known."""


@dataclass(frozen=True, slots=True)
class Partners:
    """Which weight each wanted name gets, and why the others get none."""

    taken: dict[str, str]
    alone: dict[str, str]
    without: tuple[str, ...]
    """Weights that fit nothing that is wanted."""


@dataclass(frozen=True, slots=True)
class _Search:
    """Wanted names that are still free, as the ways to find one need them."""

    wanted: Wanted
    words: Words
    wrappers: tuple[str, str]
    """What stands before all names of the weights, and before all wanted ones."""
    endings: Mapping[str, list[str]]


def find_partners(weights: Mapping[str, Weight], wanted: Wanted, words: Words) -> Partners:
    """Pair weights and wanted names; a name that fits more closely gets its partner before any other is looked for."""
    taken: dict[str, str] = {}
    alone: dict[str, str] = {}
    left = list(weights)
    wrappers = _wrapper(weights), _wrapper(wanted)
    for way in _WAYS:
        search = _search({name: shape for name, shape in wanted.items() if name not in taken}, words, wrappers)
        claims: dict[str, list[str]] = defaultdict(list)
        for name in left:
            found = _fitting(way(name, search), search.wanted, weights[name].shape)
            if len(found) == 1:
                claims[found[0]].append(name)
            elif found:
                alone[name] = f"fits {' and '.join(found[:3])}"
        for partner, names in claims.items():
            if len(names) == 1:
                taken[partner] = names[0]
            else:
                alone |= {name: f"is one of {len(names)} that fit {partner}" for name in names}
        placed = {*taken.values(), *alone}
        left = [name for name in left if name not in placed]
    return Partners(taken, alone, tuple(name for name in left if not is_counter(name)))


def partners_of_any_shape(
    weights: Iterable[str], names: Iterable[str], wanted: Iterable[str], missing: Iterable[str], words: Words
) -> dict[str, list[str]]:
    """Which of the missing names some of the weights would get if shapes did not count."""
    search = _search(dict.fromkeys(missing), words, (_wrapper(weights), _wrapper(wanted)))
    found: dict[str, list[str]] = {}
    for name in names:
        ways = (_fitting(way(name, search), search.wanted, ()) for way in _WAYS)
        found[name] = next((partners for partners in ways if partners), [])
    return found


def _fitting(candidates: Iterable[str], wanted: Wanted, shape: Shape) -> list[str]:
    return [one for one in dict.fromkeys(candidates) if one in wanted and fits(shape, wanted[one])]


def fits(shape: Shape, wanted: Shape | None) -> bool:
    return wanted is None or shape == wanted or _with_dimension(shape) == wanted or _with_dimension(wanted) == shape


def _with_dimension(shape: Shape) -> Shape | None:
    """The shape of a Conv1d's weight in MindSpore, given that in PyTorch."""
    return (*shape[:CONV1D], 1, *shape[CONV1D:]) if len(shape) == 3 else None


def _search(wanted: Wanted, words: Words, wrappers: tuple[str, str]) -> _Search:
    endings: dict[str, list[str]] = defaultdict(list)
    for name in wanted:
        parts = name.split(".")
        for index in range(1, len(parts) - 1):
            endings[".".join(parts[index:])].append(name)
    return _Search(wanted, words, wrappers, endings)


def _wrapper(names: Iterable[str]) -> str:
    """The words before all names of a network that is inside of another; the name of its only layer is none."""
    every = set(names)
    layers = [name.split(".")[:-1] for name in every if not is_of_training(name, every)] or [[]]
    ends = zip(min(layers), max(layers), strict=False)
    common = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends)]
    if common and max(map(len, layers)) == len(common):
        common.pop()
    return "".join(f"{word}." for word in common)


def _same_name(name: str, _: _Search) -> list[str]:
    return [name]


def _same_place(name: str, search: _Search) -> list[str]:
    return partner_names(name, search.words)


def _same_place_in_wrapper(name: str, search: _Search) -> list[str]:
    own, theirs = search.wrappers
    bare = (name, name.removeprefix(own))
    return [f"{theirs}{one}" for start in bare for one in partner_names(start, search.words)]


def _same_ending(name: str, search: _Search) -> list[str]:
    candidates = partner_names(name, search.words)
    longer = [one for candidate in candidates for one in search.endings.get(candidate, ())]
    parts = [candidate.split(".") for candidate in candidates]
    shorter = [".".join(part[index:]) for part in parts for index in range(1, len(part) - 1)]
    return [*longer, *shorter]


_WAYS: tuple[Callable[[str, _Search], list[str]], ...] = (
    _same_name,
    _same_place,
    _same_place_in_wrapper,
    _same_ending,
)
