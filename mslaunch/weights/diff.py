"""Compares weights: what is missing, what differs in shape or type, and by how much. Memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.checkpoint.moving.blocks import cut_blocks, within
from mslaunch.checkpoint.moving.file_io import check_unchanged, open_source
from mslaunch.checkpoint.moving.views import ITEMS, read_box
from mslaunch.checkpoint.moving.weights import Weight
from mslaunch.checkpoint.sharding.strategy import Box, box_shape, intersection
from mslaunch.open_files import room_for

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 4 << 20


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """What differs in one parameter."""

    name: str
    kind: str
    """missing (not in the second), extra (only in the second), shape, type, values."""
    first: str | None = None
    second: str | None = None
    max: float | None = None
    mean: float | None = None
    cosine: float | None = None
    """Of the angle between the two, as vectors."""
    not_finite: int = 0
    """Places where one of the two is infinite or no number, and the other is not the same."""


def compare(
    first: Mapping[str, Weight], second: Mapping[str, Weight], progress: Callable[[int], None] = lambda _: None
) -> Iterator[WeightDifference]:
    """Yield what differs, parameter by parameter, in the order of the first."""
    paths = {path for side in (first, second) for weight in side.values() for _, path, _ in weight.pieces}
    with room_for(len(paths)), ExitStack() as opened:
        files = Files(opened)
        for name, weight in first.items():
            partner = second.get(name)
            if partner is None:
                yield WeightDifference(name, "missing", weight.words())
            elif weight.shape != partner.shape:
                yield WeightDifference(name, "shape", weight.words(), partner.words())
            else:
                difference = _compare_values(files, weight, partner)
                if difference is not None:
                    yield difference
            progress(weight.nbytes)
        files.check()
    for name in sorted(second.keys() - first.keys()):
        yield WeightDifference(name, "extra", None, second[name].words())


class Files:
    """Open files, by their paths."""

    def __init__(self, opened: ExitStack) -> None:
        self.opened = opened
        self.fds: dict[Path, int] = {}

    def fd(self, path: Path) -> int:
        if path not in self.fds:
            self.fds[path] = open_source(path)
            self.opened.callback(os.close, self.fds[path])
        return self.fds[path]

    def check(self) -> None:
        """Refuse what was read of files that have changed meanwhile."""
        for path, fd in self.fds.items():
            check_unchanged(fd, path)

    def block(self, weight: Weight, box: Box) -> Array:
        """Read a box of a weight from all files that hold some of it."""
        import numpy as np

        from mslaunch.checkpoint.moving.casts import stored_type

        out = np.empty(box_shape(box), stored_type(weight.dtype))
        for place, path, view in weight.pieces:
            common = intersection(place, box)
            if common is not None:
                there = tuple(slice(*ends) for ends in within(common, box))
                out[there] = read_box(self.fd(path), path, view, within(common, place))
        return out


def _compare_values(files: Files, weight: Weight, partner: Weight) -> WeightDifference | None:
    same_type = weight.dtype == partner.dtype
    kind = "values" if same_type else "type"
    types: tuple[str | None, str | None] = (None, None) if same_type else (weight.words(), partner.words())
    if weight.packed or partner.packed:
        same = same_type and _packed_bytes(files, weight) == _packed_bytes(files, partner)
        return None if same else WeightDifference(weight.name, kind, *types)
    boxes = list(cut_blocks(weight.shape, max(ITEMS[weight.dtype], ITEMS[partner.dtype]), BLOCK))
    if same_type and all(files.block(weight, box).tobytes() == files.block(partner, box).tobytes() for box in boxes):
        return None
    sums = _Sums()
    for box in boxes:
        sums.add(_numbers(files, weight, box), _numbers(files, partner, box))
    mean = sums.total / max(1, prod(weight.shape))
    return WeightDifference(weight.name, kind, *types, sums.largest, mean, sums.cosine(), sums.not_finite)


def _packed_bytes(files: Files, weight: Weight) -> bytes:
    if weight.packed is None:
        return b""
    path, tensor = weight.packed
    return b"".join(os.pread(files.fd(path), length, at) for at, length in tensor.parts)


def _numbers(files: Files, weight: Weight, box: Box) -> Array:
    import numpy as np

    from mslaunch.checkpoint.moving.casts import to_numbers

    return to_numbers(files.block(weight, box), weight.dtype).astype(np.float64)


class _Sums:
    """What is summed up over the blocks of a parameter."""

    def __init__(self) -> None:
        self.largest = 0.0
        self.total = 0.0
        self.not_finite = 0
        self.products = [0.0, 0.0, 0.0]

    def add(self, first: Array, second: Array) -> None:
        import numpy as np

        usable = np.isfinite(first) & np.isfinite(second)
        same = (first == second) | (np.isnan(first) & np.isnan(second))
        self.not_finite += int((~usable & ~same).sum())
        first, second = first[usable], second[usable]
        differences = np.abs(first - second)
        self.largest = max(self.largest, float(differences.max(initial=0.0)))
        self.total += float(differences.sum())
        for index, (a, b) in enumerate(((first, second), (first, first), (second, second))):
            self.products[index] += float((a * b).sum())

    def cosine(self) -> float | None:
        """None where one of the two is zero everywhere."""
        between, first, second = self.products
        length = sqrt(first) * sqrt(second)
        return max(-1.0, min(1.0, between / length)) if length > 0 and isfinite(length) else None
