"""The checkpoint of an inference job: verified first, resharded where the ranks differ, and kept for next time."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.checkpoint.sharding.sets import ShardSet, differing_parameter, find_set, strategy_beside
from mslaunch.checkpoint.sharding.strategy import Strategy, read_strategy
from mslaunch.checkpoint.sharding.verify import require_valid
from mslaunch.errors import Disagreement, RequestError
from mslaunch.launcher.read import CheckpointRequest
from mslaunch.plan.model import Checkpoints
from mslaunch.run.ownership import user_name

if TYPE_CHECKING:
    from mslaunch.checkpoint.formats.table import Shard
    from mslaunch.checkpoint.moving.new_files import Planned
    from mslaunch.checkpoint.moving.shard_writer import Progress


def kept_folder(runs_dir: Path) -> Path:
    """Where the caller's sets are; a folder of runs may have several users."""
    return runs_dir / f".checkpoints-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class KeptSets:
    """The sets of the caller in a folder of runs."""

    folder: Path

    def make_folder(self) -> str | None:
        """Make the folder where it is missing; return why it cannot be used."""
        try:
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            found = self.folder.lstat()
        except OSError as error:
            return f"{self.folder}: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return f"{self.folder} is not a folder"
        if found.st_uid != os.geteuid():
            return f"{self.folder} belongs to {user_name(found.st_uid)}"
        if found.st_mode & 0o022:
            return f"others may write to {self.folder} (chmod 700 closes it)"
        return None

    def use(self, planned: Planned, target: Path, moving: Callable[[int], Progress]) -> bool:
        """Link the kept set that holds what is planned into a new folder; tell whether there is one."""
        for entry in self._entries():
            before = _inodes(planned, entry)
            if before is None or not planned.is_in(entry, moving(planned.job.nbytes)):
                continue
            if _link_files(planned, entry, target) and _inodes(planned, target) == before:
                return True
            shutil.rmtree(target)
        return False

    def keep(self, planned: Planned, source: Path, name: str) -> None:
        """Keep the set of a run; a file system without hard links keeps none."""
        _link_files(planned, source, self.folder / name)

    def forget_unused(self) -> None:
        """Remove the sets that no run links to any more."""
        for entry in self._entries():
            with suppress(OSError):
                if all(path.lstat().st_nlink == 1 for path in entry.rglob("*") if not path.is_dir()):
                    shutil.rmtree(entry)

    def _entries(self) -> Iterator[Path]:
        with suppress(OSError):
            yield from sorted(path for path in self.folder.iterdir() if path.is_dir() and not path.is_symlink())


def _files(planned: Planned) -> Iterable[str]:
    return (*planned.names.values(), *planned.extra)


def _inodes(planned: Planned, folder: Path) -> list[int] | None:
    """Return which files a folder has for a set; None where some are missing, or are another user's."""
    try:
        found = [(folder / name).lstat() for name in _files(planned)]
    except OSError:
        return None
    is_own = all(stat.S_ISREG(one.st_mode) and one.st_uid == os.geteuid() for one in found)
    return [one.st_ino for one in found] if is_own else None


def _link_files(planned: Planned, source: Path, target: Path) -> bool:
    """Link the files of a set into a new folder; tell whether all of them are there now."""
    try:
        target.mkdir(mode=0o700)
        for name in _files(planned):
            (target / name).parent.mkdir(mode=0o700, exist_ok=True)
            os.link(source / name, target / name, follow_symlinks=False)
    except OSError:  # no hard links here, or another run has just removed the set
        return False
    return True


PLACE = "checkpoints"
"""Where a run has its resharded set."""


@dataclass(frozen=True, slots=True)
class ServedSet:
    """The checkpoint that a job serves, as it lies on the disk."""

    request: CheckpointRequest
    shards: ShardSet
    strategy: Path | None
    """How it is cut: the file that was named, or the one beside the shards."""
    trained: Strategy | None
    target: Strategy | None
    """The layout to infer with, where one was named."""

    @property
    def default_workers(self) -> int | None:
        layout = self.target or self.trained
        return layout.world_size if layout else None


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files that the ranks of a job load, and the reshard that makes them, where they are not there yet."""

    checkpoints: Checkpoints
    reshard: Planned | None = None


def read_set(request: CheckpointRequest) -> ServedSet:
    """Find the newest complete step of a checkpoint, and read how it is cut."""
    if not request.path.exists():
        from mslaunch.launcher.explain import earlier_run_with
        from mslaunch.run.find import folders_to_search

        if earlier := earlier_run_with(str(request.path), folders_to_search(os.environ)):
            raise RequestError(f"{request.path}: no such checkpoint here. {earlier}")
    strategy = request.strategy or strategy_beside(request.path)
    trained = read_strategy(strategy) if strategy else None
    target = read_strategy(request.predict_strategy) if request.predict_strategy else None
    if target and not trained:
        raise RequestError("--predict-strategy needs --strategy FILE, which says how the checkpoint is cut now.")
    ranks = trained.world_size if trained else None
    shards = find_set(request.path, ranks, request.step, request.prefix)
    return ServedSet(request, shards, strategy, trained, target)


def choose_files(served: ServedSet, workers: int, run_dir: str) -> ChosenFiles:
    """Verify a set and choose which files a job of so many ranks loads."""
    request, target, trained = served.request, served.target, served.trained
    if target and workers != target.world_size:
        raise Disagreement(
            "number of ranks",
            (workers, "--workers"),
            (target.world_size, f"--predict-strategy {request.predict_strategy}"),
            "Leave --workers out, or give the strategy for that many.",
        )
    verified = require_valid(served.shards, trained)
    notes = tuple(f"checkpoint {request.path}: {finding.words()}" for finding in verified.findings)
    if trained is None:
        return _same_for_all(served, workers, verified.shards, notes)
    if request.strategy is None:
        notes = (*notes, f"checkpoint {request.path}: cut as {served.strategy} says, which lies beside the shards")
    fits = workers == trained.world_size if target is None else target.stages == trained.stages
    if fits:
        files = tuple(str(served.shards.files[rank].resolve()) for rank in range(workers))
        return ChosenFiles(_checkpoints(served, files, _full(served.strategy), notes, "as it was trained"))
    return _resharded(served, trained, workers, run_dir, notes)


def _same_for_all(served: ServedSet, workers: int, shards: Mapping[int, Shard], notes: tuple[str, ...]) -> ChosenFiles:
    path, files = served.request.path, served.shards.files
    if len(files) > 1:
        ranks = f"{len(files)} ranks, and no --strategy"
        if different := differing_parameter(shards):
            rank, name = different
            raise RequestError(
                f"{path}: shards of {ranks}; they are not the same ({name} of rank {rank} differs). Say with "
                f"--strategy FILE how they are cut, or name with --ckpt FILE the one that all ranks are to load."
            )
        notes = (*notes, f"checkpoint {path}: {ranks}: every rank is given rank 0's")
    file = str(files[min(files)].resolve())
    return ChosenFiles(_checkpoints(served, (file,) * workers, None, notes, "the same on each rank"))


def _resharded(served: ServedSet, trained: Strategy, workers: int, run_dir: str, notes: tuple[str, ...]) -> ChosenFiles:
    from mslaunch.checkpoint.sharding.reshard import STRATEGY, Target, new_names, plan_transform

    cuts = any(layout.cut_dimension is not None for layout in trained.layouts())
    whole = served.target is None and (workers == 1 or not cuts)
    degree = workers if served.target is None and not whole else None
    planned = plan_transform(served.shards, trained, Target(served.target, degree))
    place = Path(run_dir, PLACE)
    if whole:
        suffix = next(iter(served.shards.files.values())).suffix
        name = new_names(served.shards, 1, suffix)[0]
        files: tuple[str, ...] = (str(place / name),) * workers
        return ChosenFiles(_checkpoints(served, files, None, notes, "merged into the whole model"), planned)
    files = tuple(str(place / planned.names[rank]) for rank in range(workers))
    strategy = str(place / STRATEGY) if degree else _full(served.request.predict_strategy)
    how = f"resharded from {trained.world_size} ranks to {workers}"
    return ChosenFiles(_checkpoints(served, files, strategy, notes, how), planned)


def _full(path: Path | None) -> str:
    return str(Path(path or "").resolve())


def _checkpoints(
    served: ServedSet, files: tuple[str, ...], strategy: str | None, notes: tuple[str, ...], how: str
) -> Checkpoints:
    step = served.shards.step
    of = f" of epoch {step[0]}, step {step[1]}" if step else ""
    return Checkpoints(files, strategy, step, (*notes, f"checkpoint {served.request.path}{of}, {how}"))


def place_set(planned: Planned, run_dir: Path, moving: Callable[[int], Progress], say: Callable[[str], None]) -> None:
    """Put a resharded set into the run's folder: one that is kept from an earlier run, or a new one."""
    place, kept = run_dir / PLACE, KeptSets(kept_folder(run_dir.parent))
    why = kept.make_folder()
    if why:
        say(f"the resharded set is not kept for later runs: {why}")
    else:
        kept.forget_unused()
        if kept.use(planned, place, moving):
            return
    planned.write(place, moving(planned.job.nbytes))
    for name in (*planned.names.values(), *planned.extra):
        (place / name).chmod(0o400)  # runs share it
    if not why:
        kept.keep(planned, place, run_dir.name)
