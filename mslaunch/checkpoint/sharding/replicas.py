"""Whether files that no strategy belongs to hold the same parameters, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from typing import BinaryIO

from mslaunch.checkpoint.formats.table import Shard
from mslaunch.checkpoint.formats.tensor import CHUNK, chunks
from mslaunch.checkpoint.moving.blocks import pieces
from mslaunch.errors import ShardUnreadable


def differing_parameter(shards: Mapping[int, Shard]) -> tuple[int, str] | None:
    """Find a rank and its first parameter that is not the first rank's; single values, such as counters, may differ."""
    first, *others = sorted(shards)
    beside = [shards[rank] for rank in others]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for find in (_other_header, _other_bytes):
            names = pool.map(partial(find, shards[first]), beside)
            for rank, name in zip(others, names, strict=True):
                if name is not None:
                    return rank, name
    return None


def _other_header(first: Shard, second: Shard) -> str | None:
    for name in dict.fromkeys((*first.tensors, *second.tensors)):
        own, theirs = first.tensors.get(name), second.tensors.get(name)
        if own is None or theirs is None or own.words() != theirs.words():
            return name
    return None


def _other_bytes(first: Shard, second: Shard) -> str | None:
    with _opened(first) as file, _opened(second) as beside:
        for name, tensor in first.tensors.items():
            for begin in range(0, tensor.nbytes if prod(tensor.shape) > 1 else 0, CHUNK):
                if _window(first, file, name, begin, CHUNK) != _window(second, beside, name, begin, CHUNK):
                    return name
    return None


def _opened(shard: Shard) -> BinaryIO:
    try:
        return shard.path.open("rb")
    except OSError as error:
        raise ShardUnreadable(str(shard.path), str(error)) from None


def _window(shard: Shard, file: BinaryIO, name: str, begin: int, length: int) -> bytes:
    places = pieces(shard.tensors[name].parts, begin, length)
    try:
        return b"".join(data for at, _, size in places for data in chunks(file.fileno(), at, size))
    except (OSError, ValueError) as error:
        raise ShardUnreadable(str(shard.path), str(error)) from None


def read_stretch(shard: Shard, name: str, begin: int, length: int) -> bytes:
    """Read some bytes of a parameter."""
    with _opened(shard) as file:
        return _window(shard, file, name, begin, length)
