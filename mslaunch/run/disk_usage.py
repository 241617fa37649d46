"""Disk use: how much a folder takes, and notes about large folders of runs and nearly full disks."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mslaunch.run.find import option_for
from mslaunch.text import byte_count

MUCH = 10_000_000_000  # bytes of all runs in a folder from which a note mentions them
LITTLE, LITTLE_SHARE = 20_000_000_000, 0.05
"""A disk is nearly full where both less than so many bytes and less than this share of it are free."""


def describe_use(runs_dir: Path, total: int) -> list[str]:
    """Return a note for runs that take `total` bytes, if that is much, and one for a disk that is nearly full."""
    place = option_for(runs_dir, os.environ)
    advice = f"`mslaunch prune --older-than 30d --dry-run{place}` lists what can go"
    notes = []
    if total >= MUCH:
        notes.append(f"the runs in {runs_dir} take {byte_count(total)}; {advice}")
    with suppress(OSError):
        disk = shutil.disk_usage(runs_dir)
        if disk.free < LITTLE and disk.free < disk.total * LITTLE_SHARE:
            notes.append(f"the disk of {runs_dir} is nearly full: {byte_count(disk.free)} are free; {advice}")
    return notes


def entries(path: Path, until: float | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield everything below a folder except what cannot be read or vanishes; raise TimeoutError after `until`."""
    folders = [str(path)]
    while folders:
        if until is not None and time.monotonic() > until:
            raise TimeoutError
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError), os.scandir(folders.pop()) as children:
            for entry in children:
                yield entry
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)


def measure(path: Path, until: float | None = None, only_freed: bool = False) -> int:
    """Return the bytes that a folder takes, or that deleting it frees: not those of files with a name elsewhere too.

    Raise TimeoutError after `until`.
    """
    linked: dict[tuple[int, int], tuple[int, int, int]] = {}
    total = 0
    for entry in entries(path, until):
        with suppress(FileNotFoundError, PermissionError):
            status = entry.stat(follow_symlinks=False)
            size, key = status.st_blocks * 512, (status.st_dev, status.st_ino)
            if status.st_nlink == 1 or entry.is_dir(follow_symlinks=False):
                total += size
            else:
                names = linked.get(key, (0, 0, 0))[0] + 1
                linked[key] = (names, status.st_nlink, size)
    return total + sum(size for names, links, size in linked.values() if names >= links or not only_freed)
