"""Finding checkpoints: which step a file holds, whether it is whole, and the newest step that all ranks have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_NAME = re.compile(r"(.*?)(?:_\d+)?-(\d+)_(\d+)\.(?:ckpt|safetensors)")

Step = tuple[int, int, str]
"""Epoch and step, as numbers, and the prefix, without the number that MindSpore gives a second run's."""
_VALUE_TAG = 0x0A  # field 1 of Checkpoint, length-delimited
_CRC_TRAILER = b"crc_num"
_CRC_BYTES = 10


def step_of(path: Path) -> Step | None:
    """Return what `prefix-3_120.ckpt` holds: epoch 3, step 120."""
    found = _NAME.fullmatch(path.name)
    return (int(found[2]), int(found[3]), found[1]) if found else None


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint file ends where its own lengths say; only those are read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return size > 0 and (_safetensors_end if path.suffix == ".safetensors" else _ckpt_end)(file, size) == size
    except (OSError, ValueError, KeyError, TypeError):
        return False


def newest_complete(folders: Mapping[int, Path], since: float = 0.0) -> dict[int, Path]:
    """Return each rank's file of the newest step that is there, and whole, on all ranks; nothing if there is none.

    Files older than `since` are another job's.
    """
    by_rank = {rank: _by_step(folder, since) for rank, folder in folders.items()}
    common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
    for step in sorted(common, reverse=True):
        files = {rank: _first_whole(steps[step]) for rank, steps in by_rank.items()}
        if all(files.values()):
            return {rank: path for rank, path in files.items() if path is not None}
    return {}


def _by_step(folder: Path, since: float) -> dict[Step, list[Path]]:
    steps: dict[Step, list[Path]] = {}
    for path in folder.glob("*") if folder.is_dir() else ():
        step = step_of(path)
        if step is not None and path.stat().st_mtime >= since:
            steps.setdefault(step, []).append(path)
    return steps


def _first_whole(paths: list[Path]) -> Path | None:
    """Of files of the same step (a second run's name gets a number) take the one written last that is whole."""
    newest = sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((path for path in newest if is_whole(path)), None)


def _ckpt_end(file: BinaryIO, size: int) -> int:
    """Hop over the records of a protobuf Checkpoint; return where the last one says it ends."""
    at = 0
    while at < size:
        file.seek(at)
        head = file.read(11)
        if head.startswith(_CRC_TRAILER):
            return at + len(_CRC_TRAILER) + _CRC_BYTES
        if head[0] != _VALUE_TAG:
            return -1
        length, used = _varint(head[1:])
        at += 1 + used + length
    return at


def _varint(data: bytes) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise ValueError("a length without end")


def _safetensors_end(file: BinaryIO, size: int) -> int:
    length = int.from_bytes(file.read(8), "little")
    if length > size:
        return -1
    header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + int(max(ends, default=0))
