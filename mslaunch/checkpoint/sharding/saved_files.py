"""Checkpoint files: what their names say, where they lie, and which of them belong to one network."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mslaunch.checkpoint.formats.table import FORMATS, is_checkpoint, recognise
from mslaunch.shared import layout, work_folder

_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_STEM = re.compile(rf"(.*)-({_NUMBER})_({_NUMBER})", re.DOTALL)
_RANK = re.compile(rf"{layout.RANK}({_NUMBER})(?![0-9])")
"""How folders and files are called that belong to one rank: as MindSpore does it, and our own runs."""
_RERUN = re.compile(r"(.+)_([1-9][0-9]{0,8})", re.DOTALL)
"""How MindSpore calls the files of a further run in the same folder: PREFIX_1, PREFIX_2."""
DEPTH = 6

Step = tuple[int, int]
"""Epoch and step, as numbers: 10 comes after 9."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A checkpoint file of one rank, and what its name says."""

    path: Path
    rank: int
    prefix: str
    """The part of the name before the step, below the rank's folder; `*` stands for the rank's own number."""
    step: Step | None


@dataclass(frozen=True, slots=True)
class SavedStep:
    """The files of one step, by rank, all of one format."""

    run: int
    """0 for the files of the first run in a folder, 1 where MindSpore called them PREFIX_1, and so on."""
    step: Step | None
    suffix: str
    files: Mapping[int, Path]

    @property
    def name(self) -> str:
        """The name of one of its files."""
        return self.files[min(self.files)].name


@dataclass(frozen=True, slots=True)
class Network:
    """What was saved under one prefix, newest first."""

    name: str
    steps: tuple[SavedStep, ...]

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(rank for saved in self.steps for rank in saved.files)

    @property
    def files(self) -> Iterator[Path]:
        return (path for saved in self.steps for path in saved.files.values())

    def of_attempts(self, starts: Sequence[float]) -> Network:
        """Leave out what is older than the first attempt, and of each step what an earlier attempt has left."""
        steps = []
        for saved in self.steps:
            attempts: dict[int, int] = {}
            for rank, path in saved.files.items():
                with suppress(OSError):
                    attempts[rank] = bisect_right(starts, path.stat().st_mtime)
            last = max(attempts.values(), default=0)  # files of another attempt belong to other values
            files = {rank: saved.files[rank] for rank, attempt in attempts.items() if attempt == last > 0}
            if files:
                steps.append(replace(saved, files=files))
        return replace(self, steps=tuple(steps))


def step_of(path: Path) -> Step | None:
    """Return what `prefix-3_120.ckpt` holds: epoch 3, step 120."""
    match = _STEM.fullmatch(path.stem)
    return (int(match[2]), int(match[3])) if match and path.suffix in FORMATS else None


def saved_file(path: Path, rank: int, place: str = "") -> SavedFile:
    """Read a file's name; `place` is its folder below the rank's."""
    match = _STEM.fullmatch(path.stem)
    prefix = match[1] if match else path.stem
    own = re.compile(rf"{layout.RANK}{rank}(?![0-9])")
    return SavedFile(path, rank, own.sub(f"{layout.RANK}*", str(Path(place, prefix))), step_of(path))


# Where files lie


def files_below(folder: Path, prefix: str | None = None) -> list[SavedFile]:
    """Find the files in a folder that a user names: in rank_N folders or below them, else beside each other."""
    is_run = (folder / layout.RECORD).is_file()
    files: list[SavedFile] = []
    for entry in sorted(folder.iterdir()):
        match = _RANK.fullmatch(entry.name)
        place = entry / layout.WORK if is_run else entry
        if match and place.is_dir():
            files += _nearest(place, int(match[1]), prefix, is_run)
    if is_run and not files:
        files = [file for file in files_of_code(folder) if _begins(file, prefix)]
    if files:
        return files
    flat = {}
    for path in recognise(folder):
        match = _RANK.search(path.name)
        if _begins(saved_file(path, int(match[1]) if match else 0), prefix):
            flat[path] = ""
    return _numbered(flat)


def files_of_ranks(folders: Mapping[int, Path], prefix: str | None = None) -> list[SavedFile]:
    """Find the files in one folder per rank, or in rank_N below it; all ranks may have the same folder."""
    files: list[SavedFile] = []
    for rank, folder in folders.items():
        for place in ("", layout.rank_folder(rank)):
            paths = [path for path in recognise(folder / place) if _is_of(path.name, rank, _RANK.search)]
            saved = [saved_file(path, rank, place) for path in paths]
            saved = [file for file in saved if _begins(file, prefix)]
            if saved:
                files += saved
                break
    return files


def files_of_run(ranks: Mapping[int, Path], entries: Callable[[Path], Iterable[os.DirEntry[str]]]) -> list[SavedFile]:
    """Find all files with a step in the folders of a run's ranks; what lies behind a link is not the run's."""
    files: list[SavedFile] = []
    for rank, folder in ranks.items():
        for entry in entries(folder):
            path = Path(entry.path)
            with suppress(OSError):
                if step_of(path) is not None and entry.is_file(follow_symlinks=False):
                    files.append(saved_file(path, rank, str(path.parent.relative_to(folder))))
    return files


def files_of_code(run: Path) -> list[SavedFile]:
    """Find the files that the ranks of a run have written into code/, by a path from `__file__`."""
    code = run / layout.CODE
    paths = sorted(run / name for name, _ in work_folder.code_files(str(run)))
    return _numbered({path: str(path.parent.relative_to(code)) for path in paths if is_checkpoint(path)})


def _numbered(places: Mapping[Path, str]) -> list[SavedFile]:
    """Read ranks from names and folders; where one file tells no rank, all are rank 0's."""
    matches = {path: _RANK.search(f"{place}/{path.name}") for path, place in places.items()}
    has_ranks = all(matches.values())
    files = []
    for path, match in matches.items():
        rank = int(match[1]) if match and has_ranks else 0
        files.append(saved_file(path, rank, places[path]))
    return files


def _nearest(folder: Path, rank: int, prefix: str | None, is_run: bool) -> list[SavedFile]:
    """A rank's files, as near to the top of its folder as there are any, also in ckpt/rank_N as MindSpore has it.

    In a run, links lead to the project: the run did not write what they name.
    """
    level = [folder]
    for _ in range(DEPTH):
        files = []
        for place in level:
            below = str(place.relative_to(folder))
            paths = [path for path in recognise(place) if not (is_run and path.is_symlink())]
            saved = [saved_file(path, rank, below) for path in paths]
            files += [file for file in saved if _begins(file, prefix)]
        if files:
            return files
        folders = [path for place in level for path in sorted(place.iterdir()) if path.is_dir()]
        level = [path for path in folders if _is_of(path.name, rank, _RANK.fullmatch)]
        if is_run:
            level = [path for path in level if not path.is_symlink()]
    return []


def _is_of(name: str, rank: int, match: Callable[[str], re.Match[str] | None]) -> bool:
    """Tell whether a folder or file may be of this rank: rank_3 is another's."""
    other = match(name)
    return other is None or int(other[1]) == rank


def _begins(file: SavedFile, prefix: str | None) -> bool:
    """Tell whether a file's name begins with a prefix, with or without its folder."""
    text = (prefix or "").replace("*", str(file.rank))
    place = file.prefix.rpartition("/")[0].replace("*", str(file.rank))
    return file.path.name.startswith(text) or str(Path(place, file.path.name)).startswith(text)


# Which files belong together


def networks(files: Collection[SavedFile], world: int | None = None) -> list[Network]:
    """Sort files by network: one prefix for all ranks, in which only the rank's own number differs.

    PREFIX_1 is a further run of PREFIX, by MindSpore's rule, where there is PREFIX too; else it is another network.
    """
    files = _with_rank_numbers(files, world)
    prefixes = {file.prefix for file in files}
    steps: dict[str, dict[tuple[int, Step | None, str], dict[int, Path]]] = {}
    for file in files:
        name, run = _run_of(file.prefix, prefixes) if file.step else (file.prefix, 0)
        by_step = steps.setdefault(name, {})
        by_step.setdefault((run, file.step, file.path.suffix), {})[file.rank] = file.path
    formats = list(FORMATS)
    several = []
    for name, by_step in sorted(steps.items()):
        saved = [SavedStep(*key, dict(sorted(own.items()))) for key, own in by_step.items()]
        saved.sort(key=lambda step: formats.index(step.suffix))
        saved.sort(key=lambda step: (step.run, step.step or (0, 0)), reverse=True)
        several.append(Network(name, tuple(saved)))
    return several


def _run_of(prefix: str, prefixes: Collection[str]) -> tuple[str, int]:
    """Return the network and the run that a prefix stands for."""
    match = _RERUN.fullmatch(prefix)
    if match is None or match[1] not in prefixes:
        return prefix, 0
    run = int(match[2])
    if run > len(prefixes) or any(f"{match[1]}_{number}" not in prefixes for number in range(1, run)):
        return prefix, 0  # resnet and resnet_50
    return match[1], run


def _with_rank_numbers(files: Collection[SavedFile], world: int | None) -> Collection[SavedFile]:
    """Put `*` for the rank's number where each rank has a prefix of its own: net0 on rank 0, net1 on rank 1."""
    by_rank: dict[int, set[str]] = {}
    for file in files:
        by_rank.setdefault(file.rank, set()).add(file.prefix)
    ranks = set(by_rank)
    if len(ranks) < 2 or (world is None and ranks != set(range(len(ranks)))):
        return files
    common = set.intersection(
        *({name for prefix in own for name in _starred(prefix, rank)} for rank, own in by_rank.items())
    )
    literal = set.intersection(*by_rank.values())
    starred = {name for name in common - literal if "*" in name}
    renamed = []
    for file in files:
        names = [] if file.prefix in literal else sorted(starred & _starred(file.prefix, file.rank))
        renamed.append(replace(file, prefix=names[0]) if len(names) == 1 else file)
    return renamed


def _starred(prefix: str, rank: int) -> set[str]:
    """A prefix with each of the rank's numbers in it replaced by `*`."""
    numbers = [match.span() for match in re.finditer(r"[0-9]+", prefix) if match[0] == str(rank)]
    return {f"{prefix[:begin]}*{prefix[end:]}" for begin, end in numbers}
