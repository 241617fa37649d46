"""code/: one mirror of the job's folder. Sources are copied, so that editing them does not disturb a running job."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from mslaunch import layout
from mslaunch.errors import NotReadyError

TEXT_LIMIT = 1 << 20
FILES_LIMIT = 2000
DEPTH_LIMIT = 8
_NEVER_SOURCE = {"__pycache__", "node_modules", "site-packages"}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of this machine or of the run's disk, not of an entry."""


def mirror(job_dir: Path, code: Path, leave_out: Path) -> list[str]:
    """Copy text files of up to 1 MB and folders of Python sources; link every other top-level entry.

    Runs are left out, wherever they lie, and so are folders of runs and what `render` wrote. An entry that cannot be
    read, or is deleted meanwhile, is left out too; the names of these are returned.
    """
    code.mkdir(mode=0o700)
    try:
        entries = sorted(job_dir.iterdir())
    except OSError as error:
        raise NotReadyError(
            f"{job_dir}: the job's folder cannot be read ({error.strerror}). Launch from one that can."
        ) from None
    skipped: list[Path] = []
    for entry in entries:
        _place(entry, code / entry.name, leave_out, skipped)
    return [str(path.relative_to(job_dir)) for path in skipped]


def _is_run(path: Path, runs_dir: Path) -> bool:
    real = Path(os.path.realpath(path))
    marks = (folder / mark for folder in (real, real / layout.LATEST) for mark in (layout.ZIP, layout.SWEEP))
    return real == runs_dir or any(mark.exists() for mark in marks)


def _place(source: Path, target: Path, leave_out: Path, skipped: list[Path]) -> None:
    """Put one entry into the mirror; where it cannot be read, note that instead."""
    try:
        if _is_run(source, leave_out):
            return
        if source.is_dir() and not source.is_symlink() and _is_source_folder(source):
            target.mkdir(mode=0o700)
            for entry in sorted(source.iterdir()):
                if entry.name != "__pycache__":
                    _place(entry, target / entry.name, leave_out, skipped)
        elif source.is_file() and _is_text(source):
            shutil.copy(source, target)
        elif source.exists():
            target.symlink_to(source)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        skipped.append(source)


def _is_source_folder(folder: Path) -> bool:
    """A folder with Python in it, and not so much of it that it must be something else."""
    return not _never_source(folder) and _has_python(folder)


def _never_source(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _NEVER_SOURCE or (folder / "pyvenv.cfg").exists()


def _has_python(folder: Path) -> bool:
    seen, found = 0, False
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = [name for name in folders if not _never_source(Path(place, name)) and depth < DEPTH_LIMIT]
        seen += len(files)
        found = found or any(name.endswith(".py") for name in files)
        if seen > FILES_LIMIT:
            return False
    return found


def _is_text(file: Path) -> bool:
    try:
        if file.stat().st_size > TEXT_LIMIT:
            return False
        with file.open("rb") as opened:
            head = opened.read(8192)
    except OSError:
        return False
    return b"\0" not in head
