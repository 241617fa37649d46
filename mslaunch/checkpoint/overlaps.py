"""Slices that overlap in memory: what MindSpore 2.10 writes with safetensors 0.8, which ignores how a view is cut.

A slice of a dimension other than the first is a view with gaps. Written as if it had none, it holds what follows its
first element in the whole parameter: the next slice then begins with what this one holds a little further on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from mslaunch.checkpoint.file_io import read_fully
from mslaunch.checkpoint.layout import Box, Layout, box, whole_shape
from mslaunch.checkpoint.shard import Shard
from mslaunch.checkpoint.sources import open_source
from mslaunch.checkpoint.strategy import Strategy

_COMPARED = 1 << 18
_DISTINCT = 16
"""Different values that must repeat: zeros are the same wherever a slice begins."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A parameter of which a rank's slice begins inside that of another."""

    parameter: str
    rank: int
    other: int


def find_overlaps(shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[Overlap]:
    """Look at one pair of neighbours for each parameter that is cut in a dimension other than the first."""
    for stage, layouts in strategy.stages.items():
        first = stage * strategy.stage_devices
        ranks = [rank for rank in range(first, first + strategy.stage_devices) if rank in shards]
        for name, layout in layouts.items():
            holders = [rank for rank in ranks if name in shards[rank].tensors]
            overlap = _of_parameter(name, layout, {rank: shards[rank] for rank in holders}, first)
            if overlap is not None:
                yield overlap


def _of_parameter(name: str, layout: Layout, shards: Mapping[int, Shard], first: int) -> Overlap | None:
    cut = [axis for axis, ways in enumerate(layout.cuts) if axis and ways > 1]
    if not cut or not shards:
        return None
    shape = next(iter(shards.values())).tensors[name].shape
    if len(shape) != len(layout.axes):
        return None
    whole = whole_shape(layout, shape)
    places: dict[Box, int] = {}
    for rank in shards:
        places.setdefault(box(layout, whole, rank - first), rank)
    for place, rank in places.items():
        for axis in cut:
            begin, end = place[axis]
            beside = (*place[:axis], (end, 2 * end - begin), *place[axis + 1 :])
            other = places.get(beside)
            if other is not None:
                shift = (end - begin) * prod(whole[axis + 1 :])
                return Overlap(name, rank, other) if _repeats(shards[rank], shards[other], name, shift) else None
    return None


def _repeats(one: Shard, other: Shard, name: str, shift: int) -> bool:
    """Tell whether a slice begins with what another holds behind so many elements."""
    tensor = one.tensors[name]
    size = tensor.itemsize
    if size not in (1, 2, 4, 8) or other.tensors[name].nbytes != tensor.nbytes:
        return False
    length = min(_COMPARED, tensor.nbytes - shift * size)
    if length < _DISTINCT * size:
        return False
    data = _read(one, name, shift * size, length)
    return data == _read(other, name, 0, length) and _is_varied(data, size)


def _read(shard: Shard, name: str, since: int, length: int) -> bytes:
    at, _ = shard.tensors[name].parts[0]
    data = bytearray(length)
    fd = open_source(shard.path)
    try:
        read_fully(fd, shard.path, memoryview(data), at + since)
    finally:
        os.close(fd)
    return bytes(data)


def _is_varied(data: bytes, size: int) -> bool:
    values = {data[at : at + size] for at in range(0, len(data) - size + 1, size)}
    return len(values) >= _DISTINCT
