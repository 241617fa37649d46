"""How much room a folder takes on its disk: links are not followed, and what has several names counts once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


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
