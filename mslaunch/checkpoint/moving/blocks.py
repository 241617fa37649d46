"""Blocks of tensors: how a tensor is cut into them, and where the bytes of a box lie in those of another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from mslaunch.checkpoint.formats.tensor import Part, pieces
from mslaunch.checkpoint.sharding.strategy import Box, box_shape

if TYPE_CHECKING:
    import numpy as np


def cut_blocks(shape: tuple[int, ...], itemsize: int, limit: int) -> Iterator[Box]:
    """Cut a tensor into blocks that are one stretch of memory, in it and in every slice of it."""
    axis, inner = 0, prod(shape[1:]) * itemsize
    while axis + 1 < len(shape) and inner > limit:
        axis += 1
        inner = prod(shape[axis + 1 :]) * itemsize
    if not shape:
        yield ()
        return
    if prod(shape) == 0:
        return
    rows = max(1, limit // inner)
    rest = tuple((0, size) for size in shape[axis + 1 :])
    for lead in product(*(range(size) for size in shape[:axis])):
        fixed = tuple((index, index + 1) for index in lead)
        for begin in range(0, shape[axis], rows):
            yield (*fixed, (begin, min(begin + rows, shape[axis])), *rest)


def row_length(part: Box, whole: Box, itemsize: int) -> int:
    """Return how many bytes of a box are one stretch in those of a box around it."""
    return prod(box_shape(part[_row_axis(part, whole) :])) * itemsize


def _row_axis(part: Box, whole: Box) -> int:
    axis = max(len(part) - 1, 0)
    while axis > 0 and part[axis] == whole[axis]:
        axis -= 1
    return axis


def row_places(part: Box, whole: Box, itemsize: int) -> list[int]:
    """Return where each row of a box lies in the bytes of a box around it."""
    axis = _row_axis(part, whole)
    places = [offset_of(((since, since) for since, _ in part), whole, itemsize)]
    stride = prod(box_shape(whole)[axis:]) * itemsize
    for index in range(axis - 1, -1, -1):
        count = part[index][1] - part[index][0]
        places = [place + more for more in range(0, count * stride, stride) for place in places]
        stride *= whole[index][1] - whole[index][0]
    return places


def copy_box(
    common: Box, source: memoryview, source_box: Box, target: memoryview, target_box: Box, itemsize: int
) -> None:
    """Copy a box from the bytes of one around it into those of another; NumPy, since its rows may be short."""
    import numpy as np

    def view(data: memoryview, box: Box) -> np.ndarray[Any, np.dtype[np.uint8]]:
        *outer, last = box_shape(box) or (1,)
        cut = [slice(*ends) for ends in within(common, box)]
        if cut:
            cut[-1] = slice(cut[-1].start * itemsize, cut[-1].stop * itemsize)
        return np.frombuffer(data, np.uint8).reshape(*outer, last * itemsize)[tuple(cut)]

    view(target, target_box)[...] = view(source, source_box)


def within(part: Box, around: Box) -> Box:
    """Return a box as it lies in one around it."""
    return tuple((a - since, b - since) for (a, b), (since, _) in zip(part, around, strict=True))


def offset_of(part: Iterable[tuple[int, int]], place: Box, itemsize: int) -> int:
    """Where a box begins in the slice that holds it, in bytes."""
    at = 0
    for (since, _), (begin, end) in zip(part, place, strict=True):
        at = at * (end - begin) + since - begin
    return at * itemsize


def one_stretch(parts: tuple[Part, ...], offset: int, length: int) -> int | None:
    """Where a stretch of a tensor lies in the file; None where it lies in several parts, or is empty."""
    places = list(pieces(parts, offset, length))
    return places[0][0] if len(places) == 1 else None
