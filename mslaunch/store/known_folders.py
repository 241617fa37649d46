"""The folders in which this user has launched runs: a small file below the XDG state folder, for `mslaunch ps --all`.

The file is a convenience: nothing that goes wrong with it is an error, and what it holds is not trusted.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

MOST = 200
"""Folders that are kept; older ones are forgotten."""
TRIES, PAUSE = 20, 0.01
_MOST_BYTES = 1 << 20


def index_path() -> Path | None:
    """Return where the list is kept; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "mslaunch" / "folders"


def remember(runs_dir: Path) -> None:
    """Add a folder of runs, unless it is there already; prune the list where it has grown long."""
    path = index_path()
    if path is None or "\n" in str(runs_dir):
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            if _lock(file):
                _add(file, str(runs_dir))
        finally:
            os.close(file)


def _lock(file: int) -> bool:
    """Wait a moment for one's turn: a home on a file server may hold a lock for ever, and no launch waits for that."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE)
        else:
            return True
    return False


def _add(file: int, runs_dir: str) -> None:
    """Append one line. The file is rewritten in place, so that nobody holds the lock of one that has gone."""
    lines = _read(file)
    if runs_dir in lines and len(lines) <= MOST:
        return
    if len(lines) >= 2 * MOST:
        lines = [line for line in dict.fromkeys(lines) if _is_folder(Path(line))][-MOST:]
        os.ftruncate(file, 0)
        os.write(file, os.fsencode("".join(f"{line}\n" for line in lines)))
    os.write(file, os.fsencode(f"{runs_dir}\n"))


def known(below: Path | None = None) -> list[Path]:
    """Return the folders that are still there, each once, the one used first at the front; only those `below` one.

    Others are not looked at then: they may lie on a file server that does not answer.
    """
    path = index_path()
    found: list[Path] = []
    if path is not None:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                found = [Path(line) for line in dict.fromkeys(_read(file))]
            finally:
                os.close(file)
    meant = found if below is None else [folder for folder in found if folder.is_relative_to(below)]
    return [folder for folder in meant if _is_folder(folder)]


def _read(file: int) -> list[str]:
    text = os.fsdecode(os.pread(file, _MOST_BYTES, 0))
    return [line for line in text.split("\n") if line.startswith("/") and "\0" not in line]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
