"""Finding checkpoints: which step a file holds, whether it is whole, and the newest step that all ranks have."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.shard import Shard, read_shard
from mslaunch.errors import ShardUnreadable

_NAME = re.compile(r"(.*?)(?:_\d+)?-(\d+)_(\d+)\.(?:ckpt|safetensors)")
READERS = 16

Step = tuple[int, int, str]
"""Epoch and step, as numbers, and the prefix, without the number that MindSpore gives a second run's."""


def step_of(path: Path) -> Step | None:
    """Return what `prefix-3_120.ckpt` holds: epoch 3, step 120."""
    found = _NAME.fullmatch(path.name)
    return (int(found[2]), int(found[3]), found[1]) if found else None


@dataclass(frozen=True, slots=True)
class NewestStep:
    """The newest step that all ranks have whole, and the newer ones that they have not."""

    step: Step | None
    """None where no step is complete."""
    files: Mapping[int, Path]
    read: Mapping[int, Shard | ShardUnreadable]
    incomplete: Mapping[Step, tuple[int, ...]]
    """The ranks that miss a newer step, or have it cut short."""


def newest_step(
    by_rank: Mapping[int, Mapping[Step, Sequence[Path]]], steps: Collection[Step], ranks: Collection[int]
) -> NewestStep:
    """Find the newest of these steps that is whole on all ranks; of several files of a step the first whole counts."""
    incomplete: dict[Step, tuple[int, ...]] = {}
    for step in sorted(steps, reverse=True):
        files, read = _read_step({rank: known[step] for rank, known in by_rank.items() if step in known})
        missing = tuple(rank for rank in ranks if not isinstance(read.get(rank), Shard))
        if not missing:
            return NewestStep(step, files, read, incomplete)
        incomplete[step] = missing
    return NewestStep(None, {}, {}, incomplete)


def _read_step(
    choices: Mapping[int, Sequence[Path]],
) -> tuple[dict[int, Path], dict[int, Shard | ShardUnreadable]]:
    files = {rank: paths[0] for rank, paths in choices.items()}
    read = read_files(files)
    others = {rank: paths[1:] for rank, paths in choices.items() if paths[1:] and not isinstance(read[rank], Shard)}
    if others:
        other_files, other_read = _read_step(others)
        whole = [rank for rank, shard in other_read.items() if isinstance(shard, Shard)]
        files |= {rank: other_files[rank] for rank in whole}
        read |= {rank: other_read[rank] for rank in whole}
    return files, read


def read_files(files: Mapping[int, Path]) -> dict[int, Shard | ShardUnreadable]:
    """Read all headers, several files at once; what cannot be read is returned as its error."""

    def one(path: Path) -> Shard | ShardUnreadable:
        try:
            return read_shard(path)
        except ShardUnreadable as error:
            return error

    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(files, pool.map(one, files.values()), strict=True))


def newest_complete(folders: Mapping[int, Path], since: float = 0.0) -> dict[int, Path]:
    """Return each rank's file of the newest step that is there, and whole, on all ranks; nothing if there is none.

    Files older than `since` are another job's.
    """
    by_rank = {rank: _by_step(folder, since) for rank, folder in folders.items()}
    common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
    return dict(newest_step(by_rank, common, by_rank).files)


def _by_step(folder: Path, since: float) -> dict[Step, list[Path]]:
    """The files of each step, those written last first: a second run's names get a number."""
    steps: dict[Step, list[Path]] = {}
    written = dict(_written(folder))
    for path in sorted(written, key=lambda path: written[path], reverse=True):
        step = step_of(path)
        if step is not None and written[path] >= since * 1e9:
            steps.setdefault(step, []).append(path)
    return steps


def _written(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the files of a folder with when they were written; dangling links and what vanishes are left out."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file():
                    yield Path(entry.path), entry.stat().st_mtime_ns
