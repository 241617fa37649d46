"""A set of shards: which file each rank has, and of which step. Steps are numbers: 10 comes after 9."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mslaunch import layout as run_layout
from mslaunch.checkpoint.files import Step, newest_step, read_files, step_of
from mslaunch.checkpoint.shard import FORMATS, Shard
from mslaunch.checkpoint.torch_folders import holds_torch
from mslaunch.errors import HoldsTorch, RequestError, ShardUnreadable

_RANK = re.compile(rf"{run_layout.RANK}(\d+)")
"""How folders and files are called that belong to one rank: as MindSpore does it, and our own runs."""
DEPTH = 5
"""How deep in a rank's folder checkpoints are looked for."""
_NO_CHECKPOINT = ("_breakpoint.ckpt",)
STRATEGIES = ("strategy.ckpt", "strategy.json", "train_strategy.ckpt")
"""What a strategy is called that lies beside the shards it belongs to."""


@dataclass(frozen=True, slots=True)
class ShardSet:
    """One file per rank, all of the same step."""

    folder: Path
    files: Mapping[int, Path]
    step: Step | None
    """None where the files' names hold no step."""
    incomplete: Mapping[Step, tuple[int, ...]] = field(default_factory=dict)
    """Newer steps that some of the ranks do not have, or not whole."""
    read: Mapping[int, Shard | ShardUnreadable] = field(default_factory=dict)
    """What was read of the files on the way."""

    def name_of(self, rank: int) -> str:
        path = self.files[rank]
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)


def find_set(path: Path, ranks: int | None = None, step: str | None = None, prefix: str | None = None) -> ShardSet:
    """Find the newest step that all ranks have whole, or the step that was asked for.

    Where no step is complete, the newest that any rank has is returned, for `verify` to tell what is missing.
    """
    wanted = parse_step(step)
    if path.exists() and holds_torch(path):
        raise HoldsTorch(str(path))
    if path.is_file():
        return ShardSet(path.parent, {0: path}, step_of(path))
    if not path.is_dir():
        raise RequestError(
            f"{path}: no such checkpoint. Name a file, or the folder that holds rank_0, rank_1 and so on."
        )
    found = _candidates(path)
    if not found:
        raise RequestError(f"{path}: no checkpoint (*.ckpt, *.safetensors) here nor in rank_N folders below.")
    found = _of_one_kind(_beginning(found, prefix, path))
    by_step = {rank: _by_step(files) for rank, files in found.items()}
    steps = sorted({known for known in _steps(by_step) if wanted is None or known[:2] == wanted}, reverse=True)
    if wanted is not None and not steps:
        have = ", ".join(f"{epoch}_{number}" for epoch, number, _ in sorted(_steps(by_step)))
        raise RequestError(f"{path}: no rank has step {step}. It holds {have or 'no step in the names of its files'}.")
    _one_network(path, steps)
    expected = range(ranks) if ranks is not None else sorted(found)
    if not steps:
        return ShardSet(path, {rank: _only_one(rank, found[rank]) for rank in sorted(found)}, None)
    return _newest(path, by_step, steps, expected)


def strategy_beside(path: Path) -> Path | None:
    """Find the strategy that lies in a folder of shards; None where there is none, or the folder has no shards."""
    if not path.is_dir() or not any(_RANK.search(entry.name) for entry in path.iterdir()):
        return None
    found = [path / name for name in STRATEGIES if (path / name).is_file()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise RequestError(f"{path}: has {names}. Say with --strategy FILE which one belongs to the shards.")
    return found[0] if found else None


def parse_step(text: str | None) -> tuple[int, int] | None:
    """Read `3_120`: epoch 3, step 120."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,18})[_:-](\d{1,18})", text)
    if match is None:
        raise RequestError(f"--step {text}: write EPOCH_STEP as in the files' names, for example 3_120.")
    return int(match[1]), int(match[2])


def _newest(
    folder: Path, by_step: dict[int, dict[Step, Path]], steps: list[Step], expected: range | list[int]
) -> ShardSet:
    one_file = {rank: {step: [path] for step, path in known.items()} for rank, known in by_step.items()}
    found = newest_step(one_file, steps, expected)
    if found.step is not None:
        return ShardSet(folder, dict(sorted(found.files.items())), found.step, found.incomplete, found.read)
    best = max(steps, key=lambda step: (-len(found.incomplete[step]), step))
    files = {rank: known[best] for rank, known in by_step.items() if best in known}
    return ShardSet(folder, dict(sorted(files.items())), best)


def _candidates(folder: Path) -> dict[int, list[Path]]:
    """All checkpoint files by rank: in rank_N folders or below them, or beside each other in one folder."""
    found: dict[int, list[Path]] = {}
    is_run = (folder / run_layout.RECORD).is_file()
    for entry in folder.iterdir():
        match = _RANK.fullmatch(entry.name)
        if match and entry.is_dir() and (files := _of_rank(entry, int(match[1]), is_run)):
            found.setdefault(int(match[1]), []).extend(files)
    if found:
        return found
    flat = _checkpoints(folder)
    ranks = {path: _RANK.search(path.name) for path in flat}
    for path, match in ranks.items():
        found.setdefault(int(match[1]) if match and all(ranks.values()) else 0, []).append(path)
    return found


def _of_rank(folder: Path, rank: int, is_run: bool) -> list[Path]:
    """A rank's files, as near to the top of its folder as there are any, also in ckpt/rank_N as MindSpore has it.

    In a run, links lead to the project: what they name was not written by the run.
    """
    level = [folder]
    for _ in range(DEPTH):
        found = [path for place in level for path in _checkpoints(place) if not (is_run and path.is_symlink())]
        if found:
            return found
        level = [
            below
            for place in level
            for below in sorted(place.iterdir())
            if below.is_dir() and not (is_run and below.is_symlink()) and _may_be_of(below.name, rank)
        ]
    return []


def _may_be_of(name: str, rank: int) -> bool:
    """Tell whether a folder may hold files of this rank: rank_3 is another's."""
    match = _RANK.fullmatch(name)
    return match is None or int(match[1]) == rank


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in FORMATS
        and path.is_file()
        and not path.name.endswith(_NO_CHECKPOINT)
        and not _is_strategy(path)
    )


def _is_strategy(path: Path) -> bool:
    """A strategy of MindSpore's is called .ckpt too, but begins with a number, not with a parameter."""
    try:
        with path.open("rb") as file:
            return path.suffix == ".ckpt" and file.read(1) == b"\x08"
    except OSError:
        return False  # reading it as a checkpoint tells why


def _by_step(files: list[Path]) -> dict[Step, Path]:
    """Of several files of one step (a second run's name gets a number) the one written last counts.

    Prefixes are compared without their digits, which often are the rank's.
    """
    steps: dict[Step, Path] = {}
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        step = step_of(path)
        if step is not None:
            steps[(step[0], step[1], re.sub(r"\d+", "", step[2]))] = path
    return steps


def _beginning(found: dict[int, list[Path]], prefix: str | None, folder: Path) -> dict[int, list[Path]]:
    """Keep the files whose names begin as was asked."""
    kept = {rank: [path for path in files if path.name.startswith(prefix or "")] for rank, files in found.items()}
    kept = {rank: files for rank, files in kept.items() if files}
    if not kept:
        names = sorted({path.name for files in found.values() for path in files})
        raise RequestError(f"{folder}: no file begins with {prefix!r} (--prefix); there are {', '.join(names[:4])}.")
    return kept


def _of_one_kind(found: dict[int, list[Path]]) -> dict[int, list[Path]]:
    """Of two formats in one place take the one that more ranks have; the other would be a mixture."""
    ranks = {suffix: sum(any(p.suffix == suffix for p in files) for files in found.values()) for suffix in FORMATS}
    most = max(ranks, key=lambda suffix: ranks[suffix])
    kept = {rank: [path for path in files if path.suffix == most] for rank, files in found.items()}
    return {rank: files for rank, files in kept.items() if files}


def _one_network(folder: Path, steps: list[Step]) -> None:
    names = sorted({name for *_, name in steps})
    if len(names) > 1:
        raise RequestError(f"{folder}: holds several networks ({', '.join(names)}). Say which one with --prefix NAME.")


def _steps(by_step: dict[int, dict[Step, Path]]) -> set[Step]:
    return {step for known in by_step.values() for step in known}


def _only_one(rank: int, files: list[Path]) -> Path:
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:4])
        raise RequestError(
            f"{files[0].parent}: rank {rank} has {len(files)} checkpoints without a step in their names ({names}). "
            f"Name one of these files, or rename them to PREFIX-EPOCH_STEP.ckpt."
        )
    return files[0]


def read_set(found: ShardSet) -> Mapping[int, Shard | ShardUnreadable]:
    """The headers of a set, read now where they have not been."""
    return found.read or read_files(found.files)
