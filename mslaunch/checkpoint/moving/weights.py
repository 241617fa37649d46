"""Weights on their way to another file: a whole parameter, made of views, and what can be done with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats.tensor import OTHER_ITEMS, Tensor, shape_words
from mslaunch.checkpoint.moving import views
from mslaunch.checkpoint.moving.views import FLOATS, ITEMS, TensorView
from mslaunch.checkpoint.sharding.reshard import Assembly, ReshardPlan, make_assembly, make_plan, target_boxes
from mslaunch.checkpoint.sharding.strategy import Box, Shape, Strategy, everything, intersection
from mslaunch.errors import RequestError

Piece = tuple[Box, Path, TensorView]
NOT_OF_MINDSPORE = (*OTHER_ITEMS, "C64", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2")
"""Types that can be read and left out, not written; those of .safetensors under the names that it has."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One whole parameter: which boxes of it lie in which files."""

    name: str
    dtype: str
    shape: Shape
    pieces: tuple[Piece, ...]
    packed: tuple[Path, Tensor] | None = None
    """Where it is of a type that can only be moved whole (texts, Int4)."""

    @property
    def nbytes(self) -> int:
        return self.packed[1].nbytes if self.packed else prod(self.shape) * ITEMS[self.dtype]

    def words(self) -> str:
        return f"{self.dtype} {shape_words(self.shape)}"


def weight_of(name: str, path: Path, view: TensorView) -> Weight:
    return Weight(name, view.dtype, view.shape, ((everything(view.shape), path, view),))


def _check_axis(weight: Weight, axis: int, dimensions: int) -> None:
    if weight.packed or not 0 <= axis < dimensions:
        raise RequestError(f"{weight.name}: {weight.words()} has no dimension {axis} that a rule could change.")


def rename(weight: Weight, name: str) -> Weight:
    if weight.packed:
        path, tensor = weight.packed
        return replace(weight, name=name, packed=(path, replace(tensor, name=name)))
    return replace(weight, name=name)


def _rearranged(weight: Weight, change: views.Rearrangement) -> Weight:
    pieces = tuple((change(place, (0, 1)), path, views.rearrange(view, change)) for place, path, view in weight.pieces)
    return replace(weight, shape=change(weight.shape, 1), pieces=pieces)


def transpose(weight: Weight, axes: Sequence[int]) -> Weight:
    """Put the dimensions into another order; none named are all, backwards."""
    order = tuple(axes) or tuple(reversed(range(len(weight.shape))))
    if weight.packed or sorted(order) != list(range(len(weight.shape))):
        raise RequestError(f"{weight.name}: {weight.words()} cannot be transposed to {list(order)}. Correct the rule.")
    if any(view.rows is not None for *_, view in weight.pieces):
        raise RequestError(f"{weight.name}: a rule can transpose or permute heads, not both.")
    return _rearranged(weight, partial(views.permuted, order))


def insert_dimension(weight: Weight, axis: int) -> Weight:
    _check_axis(weight, axis, len(weight.shape) + 1)
    if axis == 0 and any(view.rows is not None for *_, view in weight.pieces):
        raise RequestError(f"{weight.name}: a rule can put a dimension first or permute heads, not both.")
    return _rearranged(weight, partial(views.inserted, axis))


def remove_dimension(weight: Weight, axis: int) -> Weight:
    _check_axis(weight, axis, len(weight.shape))
    if weight.shape[axis] != 1 or (axis == 0 and any(view.rows is not None for *_, view in weight.pieces)):
        raise RequestError(f"{weight.name}: dimension {axis} of {weight.words()} is not 1 and cannot be removed.")
    change = partial(views.removed, axis)
    pieces = tuple((change(box, None), path, views.remove_dimension(view, axis)) for box, path, view in weight.pieces)
    return replace(weight, shape=change(weight.shape, None), pieces=pieces)


def split(weight: Weight, axis: int, ratios: Sequence[int], names: Sequence[str]) -> list[Weight]:
    """Cut one dimension in these proportions."""
    _check_axis(weight, axis, len(weight.shape))
    size, total = weight.shape[axis], sum(ratios)
    if size % total:
        raise RequestError(
            f"{weight.name}: dimension {axis} of {weight.words()} cannot be cut as {list(ratios)}. Correct the rule."
        )
    ends = [size // total * end for end in accumulate(ratios)]
    begins = [0, *ends[:-1]]
    return [_cut(weight, axis, *place) for place in zip(begins, ends, names, strict=True)]


def _cut(weight: Weight, axis: int, since: int, to: int, name: str) -> Weight:
    cut = tuple((since, to) if index == axis else (0, size) for index, size in enumerate(weight.shape))
    pieces: list[Piece] = []
    for place, path, view in weight.pieces:
        common = intersection(place, cut)
        if common is not None:
            a, b = common[axis]
            part = views.narrow(view, axis, a - place[axis][0], b - place[axis][0])
            pieces.append(((*common[:axis], (a - since, b - since), *common[axis + 1 :]), path, part))
    shape = (*weight.shape[:axis], to - since, *weight.shape[axis + 1 :])
    return replace(weight, name=name, shape=shape, pieces=tuple(pieces))


def concat(weights: Sequence[Weight], axis: int, name: str) -> Weight:
    """Put weights behind each other in one dimension."""
    first = weights[0]
    for weight in weights:
        _check_axis(weight, axis, len(first.shape))
        others = [shape[:axis] + shape[axis + 1 :] for shape in (weight.shape, first.shape)]
        if others[0] != others[1] or weight.dtype != first.dtype or len(weight.shape) != len(first.shape):
            both = f"{weight.name} ({weight.words()}) and {first.name} ({first.words()})"
            raise RequestError(f"{name}: {both} cannot be put together in dimension {axis}. Correct the rule.")
    pieces: list[Piece] = []
    at = 0
    for weight in weights:
        for box, path, view in weight.pieces:
            moved = (box[axis][0] + at, box[axis][1] + at)
            pieces.append(((*box[:axis], moved, *box[axis + 1 :]), path, view))
        at += weight.shape[axis]
    shape = (*first.shape[:axis], at, *first.shape[axis + 1 :])
    return Weight(name, first.dtype, shape, tuple(pieces))


def reorder_rows(weight: Weight, rows: Sequence[int]) -> Weight:
    """Put the rows of dimension 0 into another order; every file must hold the rows of whole groups."""
    pieces: list[Piece] = []
    for box, path, view in weight.pieces:
        since, to = box[0]
        places = [place for place, row in enumerate(rows) if since <= row < to]
        if places != list(range(since, to)):
            raise RequestError(f"{weight.name}: a file holds part of a head only, so its heads cannot be permuted.")
        pieces.append((box, path, views.reorder(view, [rows[place] - since for place in places])))
    return replace(weight, pieces=tuple(pieces))


def cast(weight: Weight, dtype: str) -> Weight:
    """Change the type of floating-point values; others stay as they are."""
    if weight.dtype not in FLOATS or weight.dtype == dtype:
        return weight
    changed = tuple(
        (box, path, replace(view, cast=dtype if dtype != view.dtype else None)) for box, path, view in weight.pieces
    )
    return replace(weight, dtype=dtype, pieces=changed)


def plan_weights(weights: Sequence[Weight], target: Strategy | None, framework: str = "ms") -> ReshardPlan:
    """Decide which bytes of which files go to which rank; without a strategy, all to one."""
    assemblies: list[Assembly] = []
    for weight in weights:
        if weight.dtype in NOT_OF_MINDSPORE:
            raise RequestError(
                f"{weight.name}: {weight.dtype} is a type that MindSpore's checkpoints do not have. "
                f"Leave it out with a rule: {{drop: '{re.escape(weight.name)}'}}."
            )
        places = target_boxes(weight.name, weight.shape, target)
        if weight.packed:
            source = (everything(weight.shape), *weight.packed)
            assemblies.append(make_assembly(weight.name, weight.shape, [source], places))
            continue
        sources = tuple((box, path, view.plain(weight.name) or view) for box, path, view in weight.pieces)
        itemsize, targets = ITEMS[weight.dtype], tuple(places.items())
        assemblies.append(Assembly(weight.name, weight.dtype, weight.shape, itemsize, sources, targets))
    return make_plan(assemblies, range(target.world_size if target else 1), framework=framework)
