"""The mirror of a job's project: small files are copied, so that neither side disturbs the other; data is linked."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mslaunch.documents.schema import SCHEMA_VERSION
from mslaunch.errors import NotReadyError
from mslaunch.shared import layout

FILE_LIMIT = 1 << 20
COPY_LIMIT = 32 << 20
"""What is copied in all; what is beyond this is linked."""
DATA_LIMIT = 1000
"""How many files are copied out of folders without Python, after all others; what is beyond this is linked."""
FOLDER_LIMIT = 2000
"""A folder with more entries than this, all levels counted, is linked as a whole."""
SEEN_LIMIT = 20_000
"""How many entries are looked at in all; what comes after that is linked."""
DEPTH_LIMIT = 8
_NEVER_SOURCE = {"__pycache__", "node_modules", "site-packages"}
_OBJECTS = "objects"
_GIT_LINKED = ("lfs", "modules")
_GIT_LEFT_OUT = ("logs", "worktrees")
GIT_LIMIT = 500
"""A repository with more files than this, objects not counted, is linked."""

Stamp = tuple[int, int, int]
"""The size of a file, its time of change in nanoseconds, and the CRC-32 of its content."""


def mirror(root: Path, code: Path, leave_out: Path, sources: Path = Path(), shared: tuple[str, ...] = ()) -> Snapshot:
    """Make `code` a mirror of `root`.

    Below `sources` (a path in `root`) files of up to 1 MB are copied: first those at the top and in folders that hold
    Python, then data. Small folders become folders, so that a rank can have its own of them; everything else is one
    link. Runs are left out, wherever they lie, and so are folders of runs and what `render` wrote. `shared` names
    folders in `root` that ranks write to: they are made where they are missing, and linked. The file that is this
    process's own output (`mslaunch train > out.txt`) is left out: it is no source, and no input either.
    """
    made = _Mirror(leave_out, tuple(root / name for name in shared), _own_output())
    made.make(root, code, sources)
    return Snapshot(
        {str(path.relative_to(code)): stamp for path, stamp in made.copies.items()},
        tuple(sorted(str(path.relative_to(code)) for path in made.links)),
        tuple(str(path.relative_to(root)) for path in made.unread),
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was put into code/."""

    copies: Mapping[str, Stamp]
    links: tuple[str, ...]
    """What is a link to the project: whoever writes through it, changes the project."""
    unread: tuple[str, ...]
    """What could not be read, and is left out."""

    def to_json(self) -> str:
        return json.dumps({"schema_version": SCHEMA_VERSION, "copies": self.copies, "links": self.links})


@dataclass(frozen=True, slots=True)
class _SmallFolder:
    """A folder that has been looked at, and that is small enough to be mirrored."""

    others: tuple[Path, ...]
    """Files, links, and folders that are linked as a whole."""
    folders: tuple[tuple[str, _SmallFolder], ...]
    entries: int
    """How many entries it has, those of all levels below included."""
    has_python: bool


@dataclass(slots=True)
class _Mirror:
    """One mirror in the making."""

    leave_out: Path
    shared: tuple[Path, ...]
    own_output: Mapping[int, int]
    """The files that standard output and error of this process go to, as inodes with their devices."""
    copies: dict[Path, Stamp] = field(default_factory=dict)
    links: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)
    _data: list[tuple[Path, Path]] = field(default_factory=list)
    """Files of folders without Python, and where they belong."""
    _copied: int = 0
    _seen: int = 0

    def make(self, root: Path, code: Path, sources: Path) -> None:
        if not _is_readable(root):
            raise NotReadyError(f"{root}: the job's folder cannot be read. Launch from one that can.")
        code.mkdir(mode=0o700)
        for part in sources.parts:
            for path in self._entries(root):
                if path.name != part:
                    self._link(path, code / path.name)
            root, code = root / part, code / part
            code.mkdir(mode=0o700)
        for folder in self.shared:
            folder.mkdir(parents=True, exist_ok=True)
        for path in self._entries(root):
            self._place(path, code / path.name)
        for number, (source, target) in enumerate(self._data):
            if number < DATA_LIMIT:
                self._copy_or_link(source, target)
            else:
                self._link(source, target)

    def _entries(self, folder: Path) -> list[Path]:
        """What a folder holds, but for runs."""
        try:
            with os.scandir(folder) as entries:
                left = [entry for entry in entries if not self._is_left_out(entry)]
        except OSError:  # it has vanished meanwhile
            return []
        return sorted(Path(entry.path) for entry in left)

    def _is_left_out(self, entry: os.DirEntry[str]) -> bool:
        """Tell whether an entry is a run, a folder of runs, or the output of this process."""
        device = self.own_output.get(entry.inode())  # most entries cost no further call
        try:
            if device is not None and entry.stat(follow_symlinks=False).st_dev == device:
                return True
            is_folder = entry.is_dir()
        except OSError:  # it has vanished meanwhile, or links lead to each other
            return False
        if not is_folder:
            return False
        path = Path(entry.path)
        marks = (folder / mark for folder in (path, path / layout.LATEST) for mark in (layout.ZIP, layout.SWEEP))
        return path.resolve() == self.leave_out or any(_exists(mark) for mark in marks)

    def _place(self, source: Path, target: Path) -> None:
        """Mirror one entry of the project's top, or of a folder that holds a shared one."""
        is_folder = _is_folder(source)
        if is_folder and not _is_readable(source):
            self.unread.append(source)
            return
        if is_folder and any(source in folder.parents for folder in self.shared):
            target.mkdir(mode=0o700)
            for path in self._entries(source):
                self._place(path, target / path.name)
            return
        if source.name == layout.REPOSITORY and is_folder and self._copy_repository(source, target):
            return
        looked = self._look(source, 1) if is_folder and source not in self.shared else None
        if looked is not None:
            self._write(looked, target)
        elif is_folder:
            self._link(source, target)
        else:
            self._copy_or_link(source, target)

    def _look(self, folder: Path, depth: int) -> _SmallFolder | None:
        """Look at a folder; None for one that has too much in it, or that holds no sources."""
        if folder.name.startswith(".") or folder.name in _NEVER_SOURCE or depth > DEPTH_LIMIT:
            return None
        others: list[Path] = []
        below: list[tuple[str, _SmallFolder]] = []
        entries, has_python, partly = 0, False, False
        for path in self._entries(folder):
            is_folder = _is_folder(path)
            if is_folder and not _is_readable(path):
                self.unread.append(path)
                continue
            inside = self._look(path, depth + 1) if is_folder else None
            partly = partly or (is_folder and inside is None)
            if inside is None:
                others.append(path)
            else:
                below.append((path.name, inside))
                entries += inside.entries
                has_python = has_python or inside.has_python
            entries += 1
            self._seen += 1
            has_python = has_python or path.suffix == ".py"
            if entries > FOLDER_LIMIT or self._seen > SEEN_LIMIT or path.name == "pyvenv.cfg":
                return None
        if partly and not has_python:  # os.walk does not go into a folder that is a link in another one
            return None
        return _SmallFolder(tuple(others), tuple(below), entries, has_python)

    def _write(self, folder: _SmallFolder, target: Path) -> None:
        target.mkdir(mode=0o700)
        for path in folder.others:
            if path.name == "__pycache__":
                continue
            if _is_folder(path):
                self._link(path, target / path.name)
            elif folder.has_python:
                self._copy_or_link(path, target / path.name)
            else:
                self._data.append((path, target / path.name))
        for name, inside in folder.folders:
            self._write(inside, target / name)

    def _copy_repository(self, source: Path, target: Path) -> bool:
        """Give the run a repository of its own that reads the project's objects; tell whether that was done.

        So a commit in a rank changes no branch of the project.
        """
        files = _repository(source)
        if files is None:
            return False
        alternates = target / _OBJECTS / "info" / "alternates"
        alternates.parent.mkdir(mode=0o700, parents=True)
        for path in files:
            if _is_folder(path):
                (target / path.relative_to(source)).mkdir(mode=0o700)
            else:
                self._copy_or_link(path, target / path.relative_to(source))
        for name in _GIT_LINKED:
            self._link(source / name, target / name)
        self._write_copy(alternates, f"{(source / _OBJECTS).resolve()}\n".encode(), source.stat())
        return True

    def _copy_or_link(self, source: Path, target: Path) -> None:
        content = None if self._copied >= COPY_LIMIT else _read_small(source)
        if content is None:
            self._link(source, target)
            return
        self._copied += len(content[0])
        self._write_copy(target, *content)

    def _write_copy(self, target: Path, data: bytes, status: os.stat_result) -> None:
        """Write a file with the mode and the times of another, and note how it was written."""
        file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, status.st_mode & 0o700 | 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(file)
        self.copies[target] = (len(data), status.st_mtime_ns, zlib.crc32(data))

    def _link(self, source: Path, target: Path) -> None:
        """Link what is there; what has vanished meanwhile, or is a link to nothing, is left out."""
        try:
            source.stat()
        except PermissionError:
            self.unread.append(source)
        except OSError:
            pass
        else:
            target.symlink_to(source)
            self.links.append(target)


def _repository(git: Path) -> list[Path] | None:
    """What a repository of one's own needs, folders before what they hold; None for one that is linked.

    That is one with many files, or whose objects are not in it (a worktree).
    """
    if not (git / _OBJECTS).is_dir() or not (git / "HEAD").is_file():
        return None
    files: list[Path] = []
    for place, folders, names in os.walk(git):
        if place == str(git):
            folders[:] = [name for name in folders if name not in (_OBJECTS, *_GIT_LINKED, *_GIT_LEFT_OUT)]
        files += [Path(place, name) for name in (*folders, *names) if not name.endswith((".lock", ".sample"))]
        if len(files) > GIT_LIMIT:
            return None
    return files


def _own_output() -> dict[int, int]:
    """Return the files that standard output and error of this process go to, as inodes with their devices."""
    inodes: dict[int, int] = {}
    for number in (1, 2):
        with suppress(OSError):  # it may be closed
            file = os.fstat(number)
            if stat.S_ISREG(file.st_mode):
                inodes[file.st_ino] = file.st_dev
    return inodes


def _is_readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _is_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that may not be looked into
        return False


def _read_small(path: Path) -> tuple[bytes, os.stat_result] | None:
    """Return a small file's content and status; None for anything else, and where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe has no end
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT:
                return None
            content = os.read(file, status.st_size + 1)
        finally:
            os.close(file)
    except OSError:
        return None
    return (content, status) if len(content) == status.st_size else None
