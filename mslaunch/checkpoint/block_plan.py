"""How the bytes of one block go from the slices that hold it to the boxes that want it. Pure, in places within each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mslaunch.checkpoint.blocks import row_length, row_places
from mslaunch.checkpoint.layout import Box, box_shape, intersection

LONG_RUN = 64 << 10
"""From here on a run is worth a call of its own."""
SHORT_RUN = 1 << 10
"""Below, the kernel had better not be given each run."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What one slice holds of one box, as runs of bytes that are one stretch in both."""

    source: int
    target: int
    length: int
    source_places: tuple[int, ...]
    target_places: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlan:
    """The runs of all slices and boxes, and which way they are best moved; none where they are too short."""

    runs: tuple[Runs, ...]
    direct: bool
    """Each run is long, or alone: it is written as it was read."""
    scattered: bool
    """Every byte of the slices goes to one box, in runs that the kernel can read into their places."""


@lru_cache(maxsize=32)
def plan_block(sources: tuple[Box, ...], targets: tuple[Box, ...], itemsize: int, nbytes: int) -> BlockPlan:
    """Plan a block of `nbytes`, given what each slice and each box has of it; one block is cut like the next."""
    pairs = [
        (number, other, common)
        for other, target in enumerate(targets)
        for number, source in enumerate(sources)
        if (common := intersection(source, target)) is not None
    ]
    runs: list[Runs] = []
    for number, other, common in pairs:
        around = (sources[number], targets[other])
        length = min(row_length(common, box, itemsize) for box in around)
        if length < min(SHORT_RUN, prod(box_shape(common)) * itemsize):
            return BlockPlan((), direct=False, scattered=False)
        places = (_places(common, box, itemsize, length) for box in around)
        runs.append(Runs(number, other, length, *places))
    direct = all(one.length >= LONG_RUN or len(one.source_places) == 1 for one in runs)
    once = sum(one.length * len(one.source_places) for one in runs) == nbytes
    return BlockPlan(tuple(runs), direct, scattered=once)


def _places(common: Box, around: Box, itemsize: int, length: int) -> tuple[int, ...]:
    row = row_length(common, around, itemsize)
    return tuple(place + more for place in row_places(common, around, itemsize) for more in range(0, row, length))
