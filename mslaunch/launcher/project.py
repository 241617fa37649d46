"""The project that a job belongs to: which folder is mirrored for the ranks, and where in it they work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_MARKS = (".git", ".hg", ".svn", "pyproject.toml")
"""What the top of a repository holds."""
_READ = {".py", ".yaml", ".yml", ".sh"}
_MOST_FILES = 200
_MOST_BYTES = 1 << 20
_DEPTH = 2
_SHORTEST = 2  # "/" and one name: a disk, /tmp, /home
_HIGHEST = 3
"""How many folders above the job's folder a source may name."""

# "../data", '..' and "/.." as a piece of a path; an ellipsis in quotes is none.
_NAMED = re.compile(rb"""(?<=["'/\s=:])((?:\.\./)*\.\.(?:/[\w.@+-]+)*)/?(?=["'\s,)\]]|$)""", re.MULTILINE)
# Two steps up from a file: its folder's parent.
_TWO_UP = re.compile(
    rb"\.parent\.parent\b|\.parents\[[1-9]\]|dirname\(\s*(?:os\.path\.|osp\.)?dirname\(|\bos\.pardir\b"
)


@dataclass(frozen=True, slots=True)
class Project:
    """The folder that code/ and every rank's folder mirror."""

    root: Path
    workdir: Path
    """Where in it the ranks work, relative to it."""
    sources: Path
    """Where in it sources are copied, relative to it; what lies beside that is linked."""


def find_project(job_dir: Path, file: Path | None, home: str | None) -> Project:
    """Find the root that holds everything that a job's sources name; `file` is that of its program, if it is a source.

    It is the job's folder, or the one that holds both that and the program. Where a source names a path above it, such
    as ../data, the root is the folder in which that path begins. Sources of the same repository are copied from there
    on; what lies outside of it is linked.
    """
    own = root = job_dir
    if file is not None:
        own = Path(os.path.commonpath([job_dir, file.parent]))
        root = Path(os.path.commonpath([own, *_paths_above(job_dir, file)]))
    repository = own
    for folder in (own, *own.parents):
        if any(_exists(folder / mark) for mark in REPOSITORY_MARKS):
            repository = folder
            break
    if Path(home or "/").is_relative_to(repository):  # dotfiles are kept in a repository, too
        repository = own
    sources = root if root.is_relative_to(repository) else repository
    return Project(root, job_dir.relative_to(root), sources.relative_to(root))


def is_beside(file: Path, here: Path, home: str | None) -> bool:
    """Tell whether a file and a folder belong together: what holds both is near, and is nobody's home or disk."""
    both = Path(os.path.commonpath([here, file.parent]))
    is_small = len(both.parts) > _SHORTEST and not Path(home or "/").is_relative_to(both)
    return is_small and len(here.parts) - len(both.parts) <= _HIGHEST


def _paths_above(job_dir: Path, script: Path) -> Iterator[Path]:
    """The paths outside the job's folder that its sources name, and that are there."""
    lowest = len(job_dir.parts) - _HIGHEST
    for source in _sources(script):
        try:
            text = source.read_bytes()[:_MOST_BYTES]
        except OSError:
            continue
        paths = [source.parent.parent] if _TWO_UP.search(text) else []
        for name in {os.fsdecode(match) for match in _NAMED.findall(text)}:
            beside = Path(os.path.normpath(source.parent / name))
            paths.append(beside)
            within = beside.is_relative_to(job_dir) and _exists(beside)
            if not within and not set(name.split("/")) <= {".."}:
                paths.append(Path(os.path.normpath(job_dir / name)))
        for path in paths:
            if not path.is_relative_to(job_dir) and len(path.parts) > lowest and _exists(path):
                yield path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _sources(script: Path) -> Iterator[Path]:
    """The script, and the sources beside and below it that it may use, so many at most."""
    yield script
    files, folders = _MOST_FILES, _MOST_FILES
    for place, below, names in os.walk(script.parent):
        depth = len(Path(place).relative_to(script.parent).parts)
        below[:] = sorted(name for name in below if name.isidentifier() and depth < _DEPTH)
        sources = [Path(place, name) for name in sorted(names) if Path(name).suffix in _READ and name != script.name]
        yield from sources[:files]
        files, folders = files - len(sources), folders - 1
        if files <= 0 or folders <= 0:
            return
