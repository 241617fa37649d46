"""What people are told of the room that runs take: when they pass a size, and when the disk is nearly full."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mslaunch.errors import MslaunchError
from mslaunch.runs.history import list_runs
from mslaunch.runs.paths import RunFolder, runs_root
from mslaunch.runs.places import option_for
from mslaunch.runs.summaries import RunSummary, read_summaries
from mslaunch.text import byte_count

MUCH = 10_000_000_000
"""Bytes of all runs in a folder that people are told of; told again whenever they have doubled."""
LITTLE, LITTLE_SHARE = 20_000_000_000, 0.05
"""A disk is nearly full where both less than so many bytes and less than this share of it are free."""
ADVICE = "`mslaunch prune --older-than 30d --dry-run{place}` says what can go"


def words_at_end(folder: RunFolder, own: int | None) -> list[str]:
    """Return what to say of the room that runs take when a run, which takes `own` bytes, has ended."""
    root = runs_root(folder.path.parent)
    words = []
    with suppress(OSError, MslaunchError):
        total = total_of(root)
        if own and has_passed(total - own, total):
            words.append(describe(root, total))
    return [*words, *words_of_disk(root)]


def total_of(runs_dir: Path) -> int:
    """Return the bytes that the runs of a folder took when they ended, as far as their records tell."""
    everything = list_runs(runs_dir)
    found = read_summaries(runs_dir, everything, everything)
    return sum(one.bytes or 0 for one in found if isinstance(one, RunSummary))


def describe(runs_dir: Path, total: int) -> str:
    return f"the runs in {runs_dir} take {byte_count(total)}; {_advice(runs_dir)}"


def _advice(runs_dir: Path) -> str:
    return ADVICE.format(place=option_for(runs_dir, os.environ))


def has_passed(before: int, after: int, mark: int = MUCH) -> bool:
    """Tell whether a sum has passed a mark, or one that is twice, four times, … as high."""
    while mark <= before:
        mark *= 2
    return after >= mark


def words_of_disk(path: Path) -> list[str]:
    """Return what to say of the disk that a folder is on, where it is nearly full."""
    with suppress(OSError):
        disk = shutil.disk_usage(os.fspath(path))
        if disk.free < LITTLE and disk.free < disk.total * LITTLE_SHARE:
            return [f"the disk of {path} is nearly full: {byte_count(disk.free)} are free; {_advice(path)}"]
    return []


def entries(path: Path, until: float | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a folder; what cannot be read, or vanishes, is left out. TimeoutError after `until`."""
    folders = [str(path)]
    while folders:
        if until is not None and time.monotonic() > until:
            raise TimeoutError
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError), os.scandir(folders.pop()) as found:
            for entry in found:
                yield entry
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def measure(path: Path, until: float | None = None) -> int:
    """Return the bytes that a folder takes; TimeoutError where that takes longer than `until`."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in entries(path, until):
        with suppress(FileNotFoundError, PermissionError):
            found = entry.stat(follow_symlinks=False)
            if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                if (found.st_dev, found.st_ino) in seen:
                    continue
                seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * 512
    return total


def measure_within(path: Path, seconds: float) -> int | None:
    """Return the bytes that a folder takes; None where that cannot be known within so many seconds."""
    with suppress(OSError):
        return measure(path, time.monotonic() + seconds)
    return None
