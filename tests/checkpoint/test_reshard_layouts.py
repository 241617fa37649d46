"""Any layout into any other: random device matrices, tensor maps, optimizer cuts and shapes, block by small block."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from math import lcm, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mslaunch.checkpoint.formats import ckpt
from mslaunch.checkpoint.moving import file_io, shard_writer
from mslaunch.checkpoint.moving import shard_writer as block_plan
from mslaunch.checkpoint.moving.blocks import cut_blocks, row_length, row_places
from mslaunch.checkpoint.sharding.reshard import Target
from mslaunch.checkpoint.sharding.strategy import Layout, box, intersection, read_strategy, whole_shape
from tests.beds.sharded import contents_of, json_strategy, plan, write_anew, write_shard

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = {"Int8": "i1", "BFloat16": "u2", "Float32": "u4", "Float64": "u8"}
"""Elements are compared as the bits that they are."""


@dataclass(frozen=True)
class Cut:
    """A layout as MindSpore writes it: tensor_map counts the device matrix from its end, -1 is whole."""

    dev_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    optimizer: int = 0

    @property
    def ranks(self) -> int:
        return prod(self.dev_matrix)

    @property
    def cuts(self) -> list[int]:
        """Into how many parts each dimension is cut."""
        ways = [prod(self.dev_matrix[-1 - k] for k in along if k >= 0) for along in self.tensor_map]
        if self.optimizer:
            ways[0] *= self.ranks // prod(ways) if self.optimizer == -1 else self.optimizer
        return ways

    def json(self) -> dict[str, Any]:
        flat = [list(along) if len(along) > 1 else along[0] for along in self.tensor_map]
        step = {"opt_weight_shard_step": 1, "opt_weight_shard_size": self.optimizer} if self.optimizer else {}
        return {"dev_matrix": list(self.dev_matrix), "tensor_map": flat, **step}

    def slice(self, array: Array, rank: int) -> Array:
        """Cut by cut, with NumPy's own split: plain, slow, and nothing of it shared with mslaunch."""
        place = np.unravel_index(rank, self.dev_matrix)
        used = set()
        for dimension, along in enumerate(self.tensor_map):
            for k in along:
                if k >= 0:
                    axis = len(self.dev_matrix) - 1 - k
                    used.add(axis)
                    array = np.split(array, self.dev_matrix[axis], axis=dimension)[int(place[axis])]
        if self.optimizer:
            free = [axis for axis in range(len(self.dev_matrix)) if axis not in used]
            replica = 0
            for axis in free:
                replica = replica * self.dev_matrix[axis] + int(place[axis])
            replicas = prod(self.dev_matrix[axis] for axis in free)
            ways = replicas if self.optimizer == -1 else self.optimizer
            array = np.split(array, ways, axis=0)[replica % ways]
        return array


@st.composite
def cuts(draw: st.DrawFn, dimensions: int) -> Cut:
    """A cut over up to twelve ranks; dimensions may be cut along two axes, and further by the optimizer."""
    matrix = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: prod(sizes) <= 12))
    free = list(draw(st.permutations(range(len(matrix)))))
    tensor_map = []
    for _ in range(dimensions):
        along = tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free))))))
        tensor_map.append(along or (-1,))
    cut = Cut(tuple(matrix), tuple(tensor_map))
    replicas = cut.ranks // prod(cut.cuts)
    sizes = [0, *((-1,) if replicas > 1 else ()), *(ways for ways in range(2, replicas + 1) if replicas % ways == 0)]
    return Cut(cut.dev_matrix, cut.tensor_map, draw(st.sampled_from(sizes)))


@st.composite
def moves(draw: st.DrawFn) -> tuple[Cut, Cut, tuple[int, ...]]:
    """Two cuts of the same parameter, and a shape that both divide."""
    dimensions = draw(st.integers(1, 3))
    one, other = draw(cuts(dimensions)), draw(cuts(dimensions))
    shape = [lcm(a, b) * draw(st.integers(1, 3)) for a, b in zip(one.cuts, other.cuts, strict=True)]
    return one, other, tuple(shape)


@settings(max_examples=200, deadline=None)
@given(
    moves(),
    st.sampled_from([*TYPES]),
    st.sampled_from([".ckpt", ".safetensors"]),
    st.sampled_from([8, 24, 100, 1000, 64 << 10]),
    st.sampled_from([1, 16, 1024]),
    st.sampled_from([16, 64 << 10]),
    st.sampled_from([1, 3, 1024]),
    st.sampled_from([16, 100, 512 << 20]),
)
def test_any_layout_becomes_any_other(
    tmp_path_factory: pytest.TempPathFactory,
    move: tuple[Cut, Cut, tuple[int, ...]],
    dtype: str,
    suffix: str,
    block: int,
    short: int,
    long: int,
    vectors: int,
    split: int,
) -> None:
    """As NumPy cuts it, wherever blocks, rows and the pieces of a split file end."""
    one, other, shape = move
    folder = tmp_path_factory.getbasetemp() / "layouts"
    shutil.rmtree(folder, ignore_errors=True)
    array = np.arange(prod(shape), dtype="u8").astype(TYPES[dtype]).reshape(shape)
    with pytest.MonkeyPatch.context() as patch:
        block_plan.plan_block.cache_clear()
        patch.setattr(block_plan, "SHORT_RUN", short)
        patch.setattr(block_plan, "LONG_RUN", long)
        patch.setattr(file_io, "WRITE", 1 + vectors)
        patch.setattr(shard_writer, "BLOCK", block)
        patch.setattr(shard_writer, "IOV_MAX", vectors)
        patch.setattr(ckpt, "SPLIT_ABOVE", split)
        for rank in range(one.ranks):
            part = one.slice(array, rank)
            write_shard(folder / f"old/rank_{rank}/net{suffix}", {"w": (dtype, part.shape, part.tobytes())})
        source = read_strategy(write_anew(folder / "one.json", json_strategy({"w": one.json()})))
        target = read_strategy(write_anew(folder / "other.json", json_strategy({"w": other.json()})))
        plan(folder / "old", source, Target(target)).write(folder / "new")
    parts = [other.slice(array, rank) for rank in range(other.ranks)]
    assert contents_of(folder / "new") == {
        rank: {"w": (dtype, part.shape, part.tobytes())} for rank, part in enumerate(parts)
    }


@settings(deadline=None)
@given(moves())
def test_boxes_are_what_numpy_cuts(move: tuple[Cut, Cut, tuple[int, ...]]) -> None:
    """Every device's box, and together they cover each element equally often."""
    cut, _, shape = move
    array = np.arange(prod(shape)).reshape(shape)
    axes = tuple(tuple(len(cut.dev_matrix) - 1 - k for k in along if k >= 0) for along in cut.tensor_map)
    layout = Layout(cut.dev_matrix, axes, cut.optimizer)
    seen = np.zeros(shape, int)
    for rank in range(cut.ranks):
        place = tuple(slice(*ends) for ends in box(layout, shape, rank))
        assert array[place].tolist() == cut.slice(array, rank).tolist()
        assert whole_shape(layout, array[place].shape) == shape
        seen[place] += 1
    assert (layout.cuts, layout.world) == (tuple(cut.cuts), cut.ranks)
    assert np.all(seen == cut.ranks // prod(cut.cuts))


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=4).map(tuple), st.sampled_from([1, 2, 4, 8]), st.integers(8, 300))
def test_blocks_cover_a_tensor_once_and_keep_to_their_limit(shape: tuple[int, ...], itemsize: int, limit: int) -> None:
    """In the order of memory, none larger than the buffer that it is read into."""
    array = np.arange(prod(shape)).reshape(shape)
    pieces = [array[tuple(slice(*ends) for ends in block)].ravel() for block in cut_blocks(shape, itemsize, limit)]
    assert np.array_equal(np.concatenate([*pieces, np.array([], int)]), array.ravel())
    assert all(0 < len(piece) * itemsize <= limit for piece in pieces)


@settings(deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.sampled_from([1, 4]))
def test_rows_of_a_box_lie_where_they_are_said_to(data: st.DataObject, shape: tuple[int, ...], itemsize: int) -> None:
    """In the order of the box, and as long as they can be."""
    ends = [sorted((data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size)))) for size in shape]
    part = tuple((since, max(since + 1, to)) for since, to in ends)
    around = tuple((0, size) for size in shape)
    memory = np.arange(prod(shape) * itemsize).reshape(*shape, itemsize)
    length, places = row_length(part, around, itemsize), row_places(part, around, itemsize)
    rows = [memory.ravel()[place : place + length] for place in places]
    assert np.array_equal(np.concatenate(rows), memory[tuple(slice(*ends) for ends in part)].ravel())


def test_boxes_that_only_touch_have_nothing_in_common() -> None:
    """And a scalar has itself in common with itself."""
    assert intersection(((0, 2), (0, 4)), ((1, 3), (3, 9))) == ((1, 2), (3, 4))
    assert intersection(((0, 2),), ((2, 3),)) is None
    assert intersection((), ()) == ()
    assert box(Layout((1,), ()), (), 0) == ()


def test_a_tensor_without_elements_is_moved(tmp_path: Path) -> None:
    """It has a type and a shape all the same."""
    write_shard(tmp_path / "old" / "net.ckpt", {"w": ("Float32", (4, 0), b""), "v": ("Int8", (2,), b"ab")})
    layouts = {"w": {"dev_matrix": [2], "tensor_map": [0, -1]}, "v": {"dev_matrix": [2], "tensor_map": [0]}}
    target = read_strategy(write_anew(tmp_path / "s.json", json_strategy(layouts)))
    plan(tmp_path / "old", None, Target(target)).write(tmp_path / "new")
    assert contents_of(tmp_path / "new") == {
        rank: {"w": ("Float32", (2, 0), b""), "v": ("Int8", (1,), half)} for rank, half in enumerate((b"a", b"b"))
    }
