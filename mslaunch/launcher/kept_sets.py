"""The resharded sets that a user keeps beside his runs: hard links to the files of the runs that use them.

No name, size or time says that a kept set is the right one: every byte of it is compared with what would be written.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.moving.stream import Progress
from mslaunch.checkpoint.sharding.transform import Planned
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
