"""A view of a tensor in a file: part of it, in another order, of another type; read block by block."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.checkpoint.formats.tensor import ITEM_SIZES, Part, Tensor, pieces
from mslaunch.checkpoint.moving.file_io import open_source, read_fully
from mslaunch.checkpoint.sharding.strategy import Box, Shape, box_shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

ITEMS = {**ITEM_SIZES, "Float8_e4m3fn": 1, "Float8_e5m2": 1}
"""Bytes per element of all types that can be viewed."""
FLOATS = ("Float64", "Float32", "Float16", "BFloat16", "Float8_e4m3fn", "Float8_e5m2")
_AT_ONCE = 16 << 10
"""A stretch of this size is read in one piece, however little of it is needed."""
_MOST_AT_ONCE = 1 << 20
_MOST_UNUSED = 16
"""So is a longer one, up to this size, where at least one byte in so many is needed: calls cost more than copies."""


@dataclass(frozen=True, slots=True)
class TensorView:
    """Elements of a tensor, by their distances in the file."""

    parts: tuple[Part, ...]
    dtype: str
    offset: int
    """In elements, from the begin of the parts."""
    shape: Shape
    strides: tuple[int, ...]
    """In elements."""
    rows: tuple[int, ...] | None = None
    """Which row stands where dimension 0 is in another order."""
    cast: str | None = None
    """The type that its values are to have, if not their own."""
    scale: Scale | None = None
    """What its values are multiplied by; they need a type to be cast to then."""

    @property
    def itemsize(self) -> int:
        return ITEMS[self.dtype]

    def plain(self, name: str) -> Tensor | None:
        """The same as a tensor, where its elements are one stretch in their order; None where they are not."""
        if self.rows is not None or self.cast is not None or self.scale is not None:
            return None
        sizes = zip(self.shape, self.strides, _dense(self.shape), strict=True)
        if prod(self.shape) and any(size != 1 and stride != dense for size, stride, dense in sizes):
            return None
        places = pieces(self.parts, self.offset * self.itemsize, prod(self.shape) * self.itemsize)
        return Tensor(name, self.dtype, self.shape, tuple((at, length) for at, _, length in places) or ((0, 0),))


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of a view's values, one for each block of them."""

    path: Path
    view: TensorView
    """The factors, in as many dimensions as the values have."""
    blocks: tuple[int, ...]
    """How many values of each dimension have one factor."""
    starts: tuple[int, ...]
    """Where the view begins, in values from the begin of the first block."""


def view_of(tensor: Tensor) -> TensorView:
    """The view of a whole tensor; its type must be one of ITEMS."""
    return TensorView(tensor.parts, tensor.dtype, 0, tensor.shape, _dense(tensor.shape))


def _dense(shape: Shape) -> tuple[int, ...]:
    return tuple(prod(shape[index + 1 :]) for index in range(len(shape)))


Rearrangement = Callable[[tuple[Any, ...], Any], tuple[Any, ...]]
"""Changes values of which each belongs to a dimension; the second argument is the value of a new dimension."""


def permuted(axes: Sequence[int], values: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
    return tuple(values[axis] for axis in axes)


def inserted(axis: int, values: tuple[Any, ...], new: Any) -> tuple[Any, ...]:
    return (*values[:axis], new, *values[axis:])


def removed(axis: int, values: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
    return (*values[:axis], *values[axis + 1 :])


def rearrange(view: TensorView, change: Rearrangement) -> TensorView:
    """Put dimensions into another order, add or remove one of size 1; rows in another order must stay the first."""
    scale = view.scale
    if scale is not None:
        factors = rearrange(scale.view, change)
        scale = replace(scale, view=factors, blocks=change(scale.blocks, 1), starts=change(scale.starts, 0))
    return replace(view, shape=change(view.shape, 1), strides=change(view.strides, 0), scale=scale)


def remove_dimension(view: TensorView, axis: int) -> TensorView:
    """Remove a dimension of size 1; of its scales, those of one block are left."""
    if view.scale is not None:
        block = view.scale.starts[axis] // view.scale.blocks[axis]
        factors = narrow(view.scale.view, axis, block, block + 1)
        view = replace(view, scale=replace(view.scale, view=factors))
    return rearrange(view, partial(removed, axis))


def narrow(view: TensorView, axis: int, since: int, to: int) -> TensorView:
    """Take from `since` to `to` of one dimension."""
    shape = (*view.shape[:axis], to - since, *view.shape[axis + 1 :])
    if axis == 0 and view.rows is not None:
        return replace(view, shape=shape, rows=view.rows[since:to])
    starts = view.scale.starts if view.scale else ()
    scale = view.scale and replace(view.scale, starts=(*starts[:axis], starts[axis] + since, *starts[axis + 1 :]))
    return replace(view, shape=shape, offset=view.offset + since * view.strides[axis], scale=scale)


def reorder(view: TensorView, rows: Sequence[int]) -> TensorView:
    """Put the rows of dimension 0 into another order."""
    order = view.rows
    return replace(view, rows=tuple(rows) if order is None else tuple(order[row] for row in rows))


def read_box(fd: int, path: Path, view: TensorView, box: Box) -> Array:
    """Read a box of a view, multiplied and cast where that is asked for."""
    import numpy as np

    from mslaunch.checkpoint.moving.casts import cast, stored_type, to_numbers

    out = np.empty(box_shape(box), stored_type(view.dtype))
    if out.size:
        _read(fd, path, view, box, out)
    if view.scale is None:
        return cast(out, view.dtype, view.cast or view.dtype)
    numbers = to_numbers(out, view.dtype).astype(np.float32)
    if out.size:
        numbers *= _factors(view.scale, view.rows, box)
    return cast(numbers, "Float32", view.cast or "Float32")


def _factors(scale: Scale, rows: tuple[int, ...] | None, box: Box) -> Array:
    """Read the factors of a box; a dimension with one factor has the size 1."""
    import numpy as np

    from mslaunch.checkpoint.moving.casts import to_numbers

    numbers: list[Array] = []
    for axis, (since, to) in enumerate(box):
        places = np.array(rows[since:to]) if axis == 0 and rows is not None else np.arange(since, to)
        blocks = (places + scale.starts[axis]) // scale.blocks[axis]
        numbers.append(blocks[:1] if blocks.min() == blocks.max() else blocks)
    around = tuple((int(some.min()), int(some.max()) + 1) for some in numbers)
    fd = open_source(scale.path)
    try:
        values = to_numbers(read_box(fd, scale.path, scale.view, around), scale.view.dtype)
    finally:
        os.close(fd)
    factors: Array = values[np.ix_(*(some - since for some, (since, _) in zip(numbers, around, strict=True)))]
    return factors.astype(np.float32)


def bytes_of(values: Array) -> memoryview:
    """The bytes of an array, in order."""
    import numpy as np

    data: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return memoryview(data)


def _read(fd: int, path: Path, view: TensorView, box: Box, out: Array) -> None:
    """Read the stretch around a box where most of it is needed, else half of the box at a time."""
    import numpy as np

    first_places, last_places = [since for since, _ in box], [to - 1 for _, to in box]
    rows = None
    if view.rows is not None:
        rows = view.rows[box[0][0] : box[0][1]]
        first_places[0], last_places[0] = min(rows), max(rows)
    bounds = list(zip(first_places, last_places, view.strides, strict=True))
    spans = [(last - first) * stride for first, last, stride in bounds]
    count = 1 + sum(spans)
    if count * view.itemsize <= max(_AT_ONCE, 2 * out.nbytes, min(_MOST_AT_ONCE, _MOST_UNUSED * out.nbytes)):
        begin = view.offset + sum(first * stride for first, _, stride in bounds)
        stretch = bytearray(count * view.itemsize)
        room = memoryview(stretch)
        for at, done, length in pieces(view.parts, begin * view.itemsize, len(stretch)):
            read_fully(fd, path, room[done : done + length], at)
        data = np.frombuffer(stretch, out.dtype)
        shape = [last - first + 1 for first, last, _ in bounds]
        steps = [stride * view.itemsize for stride in view.strides]
        values = np.lib.stride_tricks.as_strided(data, shape, steps, writeable=False)
        out[...] = values if rows is None else values[[row - first_places[0] for row in rows]]
        return
    axis = max(range(len(box)), key=lambda axis: (box[axis][1] - box[axis][0] > 1) * (spans[axis] + 1))
    since, to = box[axis]
    middle = (since + to) // 2
    for half in ((since, middle), (middle, to)):
        place = [slice(None)] * len(box)
        place[axis] = slice(half[0] - since, half[1] - since)
        _read(fd, path, view, (*box[:axis], half, *box[axis + 1 :]), out[tuple(place)])
