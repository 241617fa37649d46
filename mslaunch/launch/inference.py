"""The checkpoint of an inference job: verified first, resharded where the ranks differ, and kept for next time."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.formats.table import Shard
from mslaunch.checkpoint.moving.new_files import Progress
from mslaunch.checkpoint.sharding.replicas import differing_parameter
from mslaunch.checkpoint.sharding.sets import find_set, strategy_beside
from mslaunch.checkpoint.sharding.strategy import Strategy, read_strategy
from mslaunch.checkpoint.sharding.transform import STRATEGY, Planned, Target, new_names, plan_transform
from mslaunch.checkpoint.sharding.verify import SetIsWrong, verify
from mslaunch.errors import Disagreement, RequestError
from mslaunch.plan.model import Checkpoints
from mslaunch.runs.ownership import user_name


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


@dataclass
class Chooser:
    """Decides which files the ranks are given, and makes those that are not there yet."""

    path: Path
    strategy: Path | None = None
    predict: Path | None = None
    step: str | None = None
    prefix: str | None = None

    def __post_init__(self) -> None:
        named = self.strategy is not None
        self.strategy = self.strategy or strategy_beside(self.path)
        self.beside = self.strategy is not None and not named
        self.trained = read_strategy(self.strategy) if self.strategy else None
        self.wanted = read_strategy(self.predict) if self.predict else None
        if self.wanted and not self.trained:
            raise RequestError("--predict-strategy needs --strategy FILE, which says how the checkpoint is cut now.")
        ranks = self.trained.world_size if self.trained else None
        self.found = find_set(self.path, ranks, self.step, self.prefix)
        self.planned: Planned | None = None

    @property
    def default_workers(self) -> int | None:
        known = self.wanted or self.trained
        return known.world_size if known else None

    def choose(self, workers: int, run_dir: str) -> Checkpoints:
        """Verify the set and say which files a job of so many ranks is given."""
        if self.wanted and workers != self.wanted.world_size:
            raise Disagreement(
                "number of ranks",
                (workers, "--workers"),
                (self.wanted.world_size, f"--predict-strategy {self.predict}"),
                "Leave --workers out, or give the strategy for that many.",
            )
        verified = verify(self.found, self.trained)
        if verified.errors:
            raise SetIsWrong(self.found, verified.errors)
        notes = tuple(f"checkpoint {self.path}: {finding.words()}" for finding in verified.findings)
        if self.trained is None:
            return self._same_for_all(workers, verified.shards, notes)
        if self.beside:
            notes = (*notes, f"checkpoint {self.path}: cut as {self.strategy} says, which lies beside the shards")
        if self._fits(workers, self.trained):
            files = tuple(str(self.found.files[rank].resolve()) for rank in range(workers))
            return self._checkpoints(files, str(Path(self.strategy or "").resolve()), notes, "as it was trained")
        return self._resharded(workers, run_dir, notes, self.trained)

    def _same_for_all(self, workers: int, shards: Mapping[int, Shard], notes: tuple[str, ...]) -> Checkpoints:
        if len(self.found.files) > 1:
            ranks = f"{len(self.found.files)} ranks, and no --strategy"
            if different := differing_parameter(shards):
                rank, name = different
                raise RequestError(
                    f"{self.path}: shards of {ranks}; they are not the same ({name} of rank {rank} differs). Say with "
                    f"--strategy FILE how they are cut, or name with --ckpt FILE the one that all ranks are to load."
                )
            notes = (*notes, f"checkpoint {self.path}: {ranks}: every rank is given rank 0's")
        file = str(self.found.files[min(self.found.files)].resolve())
        return self._checkpoints((file,) * workers, None, notes, "the same on each rank")

    def _fits(self, workers: int, trained: Strategy) -> bool:
        if self.wanted is not None:
            return self.wanted.stages == trained.stages
        return workers == trained.world_size

    def _resharded(self, workers: int, run_dir: str, notes: tuple[str, ...], trained: Strategy) -> Checkpoints:
        cuts = any(layout.cut_dimension is not None for layout in trained.layouts())
        whole = self.wanted is None and (workers == 1 or not cuts)
        degree = workers if self.wanted is None and not whole else None
        self.planned = plan_transform(self.found, trained, Target(self.wanted, degree))
        place = Path(run_dir, PLACE)
        if whole:
            name = new_names(self.found, 1, self._suffix())[0]
            return self._checkpoints((str(place / name),) * workers, None, notes, "merged into the whole model")
        files = tuple(str(place / self.planned.names[rank]) for rank in range(workers))
        strategy = str(place / STRATEGY) if degree else str(Path(self.predict or "").resolve())
        return self._checkpoints(files, strategy, notes, f"resharded from {trained.world_size} ranks to {workers}")

    def _suffix(self) -> str:
        return next(iter(self.found.files.values())).suffix

    def _checkpoints(
        self, files: tuple[str, ...], strategy: str | None, notes: tuple[str, ...], how: str
    ) -> Checkpoints:
        step = self.found.step
        of = f" of epoch {step[0]}, step {step[1]}" if step else ""
        return Checkpoints(files, strategy, step, (*notes, f"checkpoint {self.path}{of}, {how}"))

    def prepare(self, run_dir: Path, moving: Callable[[int], Progress], say: Callable[[str], None]) -> None:
        """Put the resharded set into the run's folder: one that is kept from an earlier run, or a new one."""
        if self.planned is None:
            return
        place, kept = run_dir / PLACE, KeptSets(kept_folder(run_dir.parent))
        why = kept.make_folder()
        if why:
            say(f"the resharded set is not kept for later runs: {why}")
        else:
            kept.forget_unused()
            if kept.use(self.planned, place, moving):
                return
        self.planned.write(place, moving(self.planned.job.nbytes))
        for name in (*self.planned.names.values(), *self.planned.extra):
            (place / name).chmod(0o400)  # runs share it
        if not why:
            kept.keep(self.planned, place, run_dir.name)
