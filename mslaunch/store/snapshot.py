"""The mirror of a job's project: sources are copied, so that editing them disturbs no run; data is linked."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mslaunch import layout
from mslaunch.errors import NotReadyError

TEXT_LIMIT = 1 << 20
COPY_LIMIT = 32 << 20
"""What is copied in all; what is beyond this is linked."""
FOLDER_LIMIT = 2000
"""A folder with more entries than this, all levels counted, is linked as a whole."""
SEEN_LIMIT = 20_000
"""How many entries are looked at in all; what comes after that is linked."""
DEPTH_LIMIT = 8
_NEVER_SOURCE = {"__pycache__", "node_modules", "site-packages"}


def mirror(
    root: Path, code: Path, leave_out: Path, sources: Path = Path(), shared: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Make `code` a mirror of `root`; return what could not be read, which is left out.

    Below `sources` (a path in `root`) text files of up to 1 MB are copied where they lie at the top or in a folder that
    holds Python. Small folders become folders of links, so that a rank can have its own of them; everything else is one
    link. Runs are left out, wherever they lie, and so are folders of runs and what `render` wrote. `shared` names
    folders in `root` that ranks write to: they are made where they are missing, and linked. The file that is this
    process's own output (`mslaunch train > out.txt`) is left out: it is no source, and no input either.
    """
    made = _Mirror(leave_out, tuple(root / name for name in shared))
    made.make(root, code, sources)
    return tuple(str(path.relative_to(root)) for path in made.unread)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that has been looked at, and that is small enough to be mirrored."""

    others: tuple[Path, ...]
    """Files, links, and folders that are linked as a whole."""
    folders: tuple[tuple[str, _Folder], ...]
    entries: int
    """How many entries it has, those of all levels below included."""
    has_python: bool


class _Mirror:
    """One mirror in the making."""

    def __init__(self, leave_out: Path, shared: tuple[Path, ...]) -> None:
        self._leave_out = leave_out
        self._shared = shared
        self._shared_above = {above for folder in shared for above in folder.parents}
        self._own_output = _own_output()
        self._copied = 0
        self._seen = 0
        self.unread: list[Path] = []

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
        for folder in self._shared:
            folder.mkdir(parents=True, exist_ok=True)
        for path in self._entries(root):
            self._place(path, code / path.name)

    def _entries(self, folder: Path) -> list[Path]:
        """What a folder holds, but for runs."""
        try:
            with os.scandir(folder) as found:
                some = [entry for entry in found if not self._is_own_output(entry)]
                entries = [(Path(entry.path), _leads_to_folder(entry)) for entry in some]
        except OSError:  # it has vanished meanwhile
            return []
        return sorted(path for path, is_folder in entries if not is_folder or not _is_run(path, self._leave_out))

    def _is_own_output(self, entry: os.DirEntry[str]) -> bool:
        own = self._own_output.get(entry.inode())  # most entries cost no further call
        try:
            return own is not None and entry.stat(follow_symlinks=False).st_dev == own
        except OSError:  # it has vanished meanwhile
            return False

    def _place(self, source: Path, target: Path) -> None:
        """Mirror one entry of the project's top, or of a folder that holds a shared one."""
        is_folder = _is_folder(source)
        if is_folder and not _is_readable(source):
            self.unread.append(source)
            return
        if source in self._shared_above and is_folder:
            target.mkdir(mode=0o700)
            for path in self._entries(source):
                self._place(path, target / path.name)
            return
        looked = self._look(source, 1) if is_folder and source not in self._shared else None
        if looked is not None:
            self._write(looked, target)
        elif is_folder:
            self._link(source, target)
        else:
            self._copy_or_link(source, target)

    def _look(self, folder: Path, depth: int) -> _Folder | None:
        """Look at a folder; None for one that has too much in it, or that holds no sources."""
        if folder.name.startswith(".") or folder.name in _NEVER_SOURCE or depth > DEPTH_LIMIT:
            return None
        others: list[Path] = []
        below: list[tuple[str, _Folder]] = []
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
        return _Folder(tuple(others), tuple(below), entries, has_python)

    def _write(self, folder: _Folder, target: Path) -> None:
        target.mkdir(mode=0o700)
        for path in folder.others:
            if path.name == "__pycache__":
                continue
            if folder.has_python and not _is_folder(path):
                self._copy_or_link(path, target / path.name)
            else:
                self._link(path, target / path.name)
        for name, inside in folder.folders:
            self._write(inside, target / name)

    def _copy_or_link(self, source: Path, target: Path) -> None:
        text = None if self._copied >= COPY_LIMIT else _read_text(source)
        if text is None:
            self._link(source, target)
            return
        content, mode = text
        self._copied += len(content)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        target.chmod(mode & 0o700 | 0o600)

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


def _own_output() -> dict[int, int]:
    """Return the files that standard output and error of this process go to, as inodes with their devices."""
    found: dict[int, int] = {}
    for number in (1, 2):
        with suppress(OSError):  # it may be closed
            file = os.fstat(number)
            if stat.S_ISREG(file.st_mode):
                found[file.st_ino] = file.st_dev
    return found


def _is_readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # links that lead to each other
        return False


def _is_run(path: Path, runs_dir: Path) -> bool:
    marks = (folder / mark for folder in (path, path / layout.LATEST) for mark in (layout.ZIP, layout.SWEEP))
    return path.resolve() == runs_dir or any(_exists(mark) for mark in marks)


def _is_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in a folder that may not be looked into
        return False


def _read_text(file: Path) -> tuple[bytes, int] | None:
    """Return a small text file's content and mode; None for anything else, and where it cannot be read."""
    try:
        if not file.is_file() or file.stat().st_size > TEXT_LIMIT:
            return None
        with file.open("rb") as opened:
            content = opened.read(TEXT_LIMIT + 1)
            mode = os.fstat(opened.fileno()).st_mode
    except OSError:
        return None
    return None if b"\0" in content[:8192] or len(content) > TEXT_LIMIT else (content, mode)
