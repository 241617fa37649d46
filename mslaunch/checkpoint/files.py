"""Finding checkpoints: which step a file holds, whether it is whole, and the newest step that all ranks have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mslaunch.checkpoint.shard import read_shard
from mslaunch.errors import MslaunchError

_NAME = re.compile(r"(.*?)(?:_\d+)?-(\d+)_(\d+)\.(?:ckpt|safetensors)")

Step = tuple[int, int, str]
"""Epoch and step, as numbers, and the prefix, without the number that MindSpore gives a second run's."""


def step_of(path: Path) -> Step | None:
    """Return what `prefix-3_120.ckpt` holds: epoch 3, step 120."""
    found = _NAME.fullmatch(path.name)
    return (int(found[2]), int(found[3]), found[1]) if found else None


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint file ends where its own lengths say; only those are read."""
    try:
        read_shard(path)
    except MslaunchError:
        return False
    return True


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
