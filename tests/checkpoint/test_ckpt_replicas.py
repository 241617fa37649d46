"""Files that no strategy belongs to are the same, or the first parameter that differs is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mslaunch.checkpoint.formats import ckpt
from mslaunch.checkpoint.formats.table import read_shard
from mslaunch.checkpoint.sharding import sets
from mslaunch.checkpoint.sharding.sets import differing_parameter
from mslaunch.errors import ShardUnreadable
from tests.beds.sharded import Content, write_shard

SAME: Content = {"a": ("Int8", (6,), b"012345"), "b": ("Int8", (2, 3), b"abcdef"), "step": ("Int8", (1,), b"x")}


def differing(folder: Path, *contents: Content) -> tuple[int, str] | None:
    paths = [write_shard(folder / f"rank_{rank}/net.ckpt", content) for rank, content in enumerate(contents)]
    return differing_parameter({rank: read_shard(path) for rank, path in enumerate(paths)})


def test_files_that_are_the_same_have_no_differing_parameter(tmp_path: Path) -> None:
    """Whatever a counter of one value says."""
    assert differing(tmp_path, SAME, SAME | {"step": ("Int8", (1,), b"y")}, SAME) is None


@pytest.mark.parametrize(
    "other",
    [
        {"b": ("Int8", (2, 3), b"abcdeF")},
        {"b": ("Int8", (3, 2), b"abcdef")},
        {"b": ("Uint8", (2, 3), b"abcdef")},
    ],
    ids=["last byte", "shape", "type"],
)
def test_the_parameter_that_differs_is_named_with_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Content
) -> None:
    """Bytes are compared to the end, piece by piece."""
    monkeypatch.setattr(sets, "CHUNK", 4)
    assert differing(tmp_path, SAME, SAME, SAME | other) == (2, "b")


@pytest.mark.parametrize("more", [0, 1], ids=["missing", "additional"])
def test_a_parameter_that_one_rank_lacks_is_named(tmp_path: Path, more: int) -> None:
    """Whichever of the two it is."""
    contents = [SAME, SAME]
    contents[more] = SAME | {"c": ("Int8", (1,), b"c")}
    assert differing(tmp_path, *contents) == (1, "c")


def test_a_parameter_that_is_split_in_one_file_only_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore splits large ones; it is the bytes that count."""
    whole = read_shard(write_shard(tmp_path / "whole/net.ckpt", SAME))
    monkeypatch.setattr(ckpt, "SPLIT_ABOVE", 4)
    split = read_shard(write_shard(tmp_path / "split/net.ckpt", SAME))
    assert len(split.tensors["b"].parts) > len(whole.tensors["b"].parts)
    assert differing_parameter({0: whole, 1: split}) is None


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 20), Path.unlink], ids=["shorter", "gone"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is not taken for one that differs."""
    paths = [write_shard(tmp_path / f"rank_{rank}/net.ckpt", SAME) for rank in range(2)]
    shards = {rank: read_shard(path) for rank, path in enumerate(paths)}
    damage(paths[1])
    with pytest.raises(ShardUnreadable, match="rank_1"):
        differing_parameter(shards)
