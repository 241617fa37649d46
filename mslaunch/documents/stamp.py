"""What tells that a file has changed, without reading it."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Return what differs as soon as a file does; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
