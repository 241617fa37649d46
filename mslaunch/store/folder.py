"""Making a run's folder with everything that its plan wants in it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mslaunch import plugins
from mslaunch.errors import RunExists, RunsFolderUnwritable
from mslaunch.plan.model import File, Plan, to_json
from mslaunch.shared import layout
from mslaunch.store import known_folders
from mslaunch.store.layout import RunFolder, SweepFolder, runs_root
from mslaunch.store.snapshot import mirror
from mslaunch.transports.bundle import BOOT, write_bundle

RESERVED = 256 << 10  # bytes for the last record of a run
RESERVED_PER_RANK = 1 << 10
NAMED = 4  # entries that are named where several could not be read


def write_atomically(path: Path, content: str, mode: int = 0o600) -> None:
    """Write a file whole, or leave the one that is there."""
    _write_beside(path, content, mode).replace(path)


def _write_beside(path: Path, content: str, mode: int = 0o600) -> Path:
    """Write what is to become a file, beside it; nothing is left of what cannot be written whole."""
    beside = _beside(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(beside, flags, mode), "wb") as file:
            file.write(content.encode("utf-8", "surrogateescape"))  # arguments and paths need not be text
    except OSError:
        _remove(beside)
        raise
    return beside


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_writer()}")


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _writer() -> str:
    """This thread: two jobs of one program may write the same file at once."""
    return f"{os.getpid()}.{threading.get_ident()}"


def create(plan: Plan) -> RunFolder:
    """Make the run's folder with everything that the plan wants in it, or leave nothing behind."""
    folder = RunFolder(Path(plan.run_dir))
    _create(folder.path, partial(fill, plan, folder))
    known_folders.remember(runs_root(folder.path.parent.resolve()))
    return folder


def create_sweep(folder: SweepFolder, record: str) -> None:
    """Make a sweep's folder with its record, or leave nothing behind."""
    _create(folder.path, partial(write_atomically, folder.record, record))


def _create(path: Path, fill_it: Callable[[], None]) -> None:
    runs_dir = path.parent
    made_runs_dir = not runs_dir.exists()
    try:
        _make_runs_dir(runs_dir)
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_dir():
            raise RunExists(path.name, str(path)) from None
        raise RunsFolderUnwritable(str(runs_dir), "it is not a folder") from None
    except OSError as error:
        raise RunsFolderUnwritable(str(runs_dir), why(error)) from None
    try:
        fill_it()
        _point_latest(path)
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


def _make_runs_dir(path: Path) -> None:
    """Make the folder of runs and those above it; whatever the umask, others may not write there."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o755, exist_ok=True)


def fill(plan: Plan, folder: RunFolder) -> None:
    """Write the plan, its files, the code and the zip into an empty folder."""
    write_files(folder.path, plan.files)
    write_bundle(folder.bundle)  # first: it marks the folder as a run, which a mirror leaves out
    runs_dir = runs_root(folder.path.parent.resolve())
    snapshot = mirror(Path(plan.job_dir), folder.code, runs_dir, Path(plan.sources_dir), plan.shared)
    write_atomically(folder.snapshot, snapshot.to_json())
    if skipped := snapshot.unread:
        more = f" and {len(skipped) - NAMED} more" if len(skipped) > NAMED else ""
        plugins.warn(f"left out of the run's code, since they cannot be read: {', '.join(skipped[:NAMED])}{more}")
    write_atomically(folder.boot, BOOT)
    write_atomically(folder.plan, to_json(plan))
    _reserve(folder.reserve, RESERVED + plan.world_size * RESERVED_PER_RANK)


def _reserve(path: Path, size: int) -> None:
    """Take room on the disk, so that a job which fills it can still be recorded; where there is none, none is taken."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError:
            path.unlink()
        finally:
            os.close(file)


def write_files(root: Path, files: tuple[File, ...]) -> None:
    for file in files:
        path = root / file.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, file.content, file.mode)


def write_next_plan(folder: RunFolder, plan: Plan, files: tuple[File, ...], before: int | None) -> None:
    """Write the plan of another attempt and its files; the plan of the attempt before is kept beside it.

    All of it is written before anything is replaced, so a full disk leaves the plan and the files that were there.
    """
    written: dict[Path, Path] = {}
    try:
        for file in files:
            path = folder.path / file.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written[path] = _write_beside(path, file.content, file.mode)
        written[folder.plan] = _write_beside(folder.plan, to_json(plan))
        if before is not None:
            _keep(folder.plan, folder.earlier_plan(before))
        for path, beside in written.items():
            beside.replace(path)
    except OSError:
        _remove(*written.values())
        raise


def _keep(path: Path, other: Path) -> None:
    """Give a file another name too, or copy it, with its time, where the file system knows no links."""
    beside = _beside(other)
    try:
        _remove(beside)
        os.link(path, beside)
    except OSError:
        try:
            shutil.copy2(path, beside)
        except OSError:
            _remove(beside)
            raise
    beside.replace(other)


def _point_latest(folder: Path) -> None:
    beside = folder.parent / f".latest.{_writer()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(folder.name)
    beside.replace(_latest(folder.parent))


def _latest(runs_dir: Path) -> Path:
    """The caller's own link: `latest` may be another user's, or a folder in a copy of runs, and not ours to replace."""
    link = runs_dir / layout.LATEST
    with contextlib.suppress(OSError):
        found = link.lstat()
        if not stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
            return runs_dir / layout.latest_of(os.geteuid())
    return link


def why(error: OSError) -> str:
    """Say what kept a file from being written."""
    return "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
