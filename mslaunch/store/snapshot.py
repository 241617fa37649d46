"""code/: one mirror of the job's folder. Sources are copied, so that editing them does not disturb a running job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mslaunch import layout

TEXT_LIMIT = 1 << 20
FILES_LIMIT = 2000
DEPTH_LIMIT = 8
_NEVER_SOURCE = {"__pycache__", "node_modules", "site-packages"}


def mirror(job_dir: Path, code: Path, leave_out: Path) -> None:
    """Copy text files of up to 1 MB and folders of Python sources; link every other top-level entry.

    Runs are left out, wherever they lie, and so are folders of runs and what `render` wrote.
    """
    code.mkdir(mode=0o700)
    for entry in sorted(os.scandir(job_dir), key=lambda entry: entry.name):
        if not _is_run(Path(entry.path), leave_out):
            _place(Path(entry.path), code / entry.name, leave_out)


def _is_run(path: Path, runs_dir: Path) -> bool:
    real = Path(os.path.realpath(path))
    marks = (folder / mark for folder in (real, real / layout.LATEST) for mark in (layout.ZIP, layout.SWEEP))
    return real == runs_dir or any(mark.exists() for mark in marks)


def _place(source: Path, target: Path, leave_out: Path) -> None:
    if source.is_dir() and not source.is_symlink() and _is_source_folder(source):
        _copy_folder(source, target, leave_out)
    elif source.is_file() and _is_text(source):
        shutil.copy(source, target)
    elif source.exists():
        target.symlink_to(source)


def _copy_folder(source: Path, target: Path, leave_out: Path) -> None:
    target.mkdir(mode=0o700)
    for entry in sorted(source.iterdir()):
        if entry.name == "__pycache__" or _is_run(entry, leave_out):
            continue
        if entry.is_dir() and not entry.is_symlink() and _is_source_folder(entry):
            _copy_folder(entry, target / entry.name, leave_out)
        elif entry.is_file() and _is_text(entry):
            shutil.copy(entry, target / entry.name)
        elif entry.exists():
            (target / entry.name).symlink_to(entry)


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
