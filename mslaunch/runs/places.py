"""Where runs are looked for when no folder of runs is named, and how a run is named in a command to type."""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mslaunch.runs.paths import RunFolder, is_file, runs_root
from mslaunch.shared import layout

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


RUNS_DIR = "mslaunch-runs"
VARIABLE = "MSLAUNCH_RUNS_DIR"


def default_runs_dir(environment: Mapping[str, str]) -> str:
    """Return the folder of runs that is used where none is named."""
    return environment.get(VARIABLE) or RUNS_DIR


def places(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that may hold the run that is meant, the default one first.

    A variable names one folder and no other. Without it these are ./mslaunch-runs, the folders below the current one
    that this user has named for a launch, and the one in which the user stands. The ./mslaunch-runs of a project below
    are not meant.
    """
    default = Path(default_runs_dir(environment))
    if environment.get(VARIABLE):
        return [default]
    here = Path.cwd()
    named = [one for one in known(here) if one.name != RUNS_DIR and not _in_a_run(one, here)]
    found = [default, *_around(here), *named]
    return list({folder.resolve(): folder for folder in reversed(found)}.values())[::-1]


def _around(here: Path) -> list[Path]:
    """The folder of runs in which one stands, also where that is in a run's folder."""
    for place in (here, *here.parents):
        if is_file(RunFolder(place).record):
            return [runs_root(place.parent)]
    return [here] if is_file(here / layout.LATEST / layout.RECORD) else []


def _in_a_run(folder: Path, here: Path) -> bool:
    """Tell whether a folder lies in that of a run: a rank has launched there, and its runs are not meant."""
    return any(is_file(RunFolder(above).record) for above in folder.parents if above.is_relative_to(here))


def words_of(folder: RunFolder, environment: Mapping[str, str]) -> str:
    """Return what to type after a verb for a run: its name, with its folder of runs where that is not the default."""
    return shlex.quote(folder.name) + option_for(runs_root(folder.path.parent), environment)


def option_for(runs_dir: Path, environment: Mapping[str, str]) -> str:
    """Return ` --runs-dir DIR` for a folder of runs; nothing for the default one."""
    if runs_dir.resolve() == Path(default_runs_dir(environment)).resolve():
        return ""
    return f" --runs-dir {shlex.quote(shown(runs_dir))}"


def shown(path: Path) -> str:
    """Return a path as a user would type it here."""
    there, here = path.resolve(), Path.cwd().resolve()
    return os.fspath(there.relative_to(here)) if there.is_relative_to(here) else os.fspath(there)
