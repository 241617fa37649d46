"""What is mounted below a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def mount_points() -> list[str] | None:
    """Return where file systems are mounted, bind mounts included; None where the kernel does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return None
    return [os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in lines]


def find_mount(folder: Path) -> Path | None:
    """Return a place in a folder, or the folder itself, at which something is mounted; None where there is none."""
    real = os.path.realpath(folder)
    for place in mount_points() or ():
        if place == real or place.startswith(f"{real}/"):
            return Path(place)
    try:
        device = os.lstat(real).st_dev
    except FileNotFoundError:
        return None
    for place, folders, _ in os.walk(real):  # the list may not show all, but has bind mounts of the same device
        for name in folders:
            with suppress(FileNotFoundError):
                if Path(place, name).lstat().st_dev != device:
                    return Path(place, name)
    return None
