"""Writing to a folder of runs: files and folders appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from mslaunch.errors import RunExists, RunsFolderUnwritable
from mslaunch.shared import layout


def write_atomically(path: Path, content: str, mode: int = 0o600) -> None:
    """Write a file whole, or leave the one that is there."""
    write_beside(path, content, mode).replace(path)


def write_beside(path: Path, content: str, mode: int = 0o600) -> Path:
    """Write what is to become a file, beside it; nothing is left of what cannot be written whole."""
    beside = beside_of(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(beside, flags, mode), "wb") as file:
            file.write(content.encode("utf-8", "surrogateescape"))  # arguments and paths need not be text
    except OSError:
        remove(beside)
        raise
    return beside


def beside_of(path: Path) -> Path:
    """Return where this thread writes a file: two jobs of one program may write the same one at once."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


def remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def keep_as(path: Path, other: Path) -> None:
    """Give a file another name too, or copy it, with its time, where the file system knows no links."""
    beside = beside_of(other)
    try:
        remove(beside)
        os.link(path, beside)
    except OSError:
        try:
            shutil.copy2(path, beside)
        except OSError:
            remove(beside)
            raise
    beside.replace(other)


def make_whole(path: Path, fill: Callable[[], None]) -> None:
    """Make a folder of runs or of a sweep and fill it, or leave nothing behind."""
    runs_dir = path.parent
    made_runs_dir = not runs_dir.exists()
    try:
        for folder in reversed(path.parents):
            if not folder.is_dir():
                folder.mkdir(mode=0o755, exist_ok=True)  # whatever the umask, others may not write there
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_dir():
            raise RunExists(path.name, str(path)) from None
        raise RunsFolderUnwritable(str(runs_dir), "it is not a folder") from None
    except OSError as error:
        raise RunsFolderUnwritable(str(runs_dir), why(error)) from None
    try:
        fill()
        point_link(_latest(runs_dir), path.name)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if made_runs_dir:
            with contextlib.suppress(OSError):
                runs_dir.rmdir()
        if isinstance(error, OSError):
            raise RunsFolderUnwritable(str(path), why(error)) from None
        raise
    if made_runs_dir:  # `git add -A` would take environments, logs and checkpoints along
        with contextlib.suppress(OSError):
            (runs_dir / ".gitignore").write_text("*\n")


def point_link(link: Path, target: str) -> None:
    """Have a link, new or old, point to a target."""
    beside = beside_of(link)
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)


def _latest(runs_dir: Path) -> Path:
    """The caller's own link: `latest` may be another user's, or a folder in a copy of runs, and not ours to replace."""
    link = runs_dir / layout.LATEST
    with contextlib.suppress(OSError):
        status = link.lstat()
        if not stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
            return runs_dir / layout.latest_of(os.geteuid())
    return link


def why(error: OSError) -> str:
    """Say what kept a file from being written."""
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
