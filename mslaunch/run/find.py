"""Finds runs: the folders that may hold them, the runs in each, and the run or sweep that a name means."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import AmbiguousRun, NoSuchRun, NotReadyError, RequestError
from mslaunch.run import ownership
from mslaunch.run.paths import RunFolder, SweepFolder, is_file, runs_root
from mslaunch.run.writing import write_atomically
from mslaunch.shared import layout

if TYPE_CHECKING:
    from mslaunch.run.run import Run

PathLike = str | os.PathLike[str]
RUNS_DIR = "mslaunch-runs"
VARIABLE = "MSLAUNCH_RUNS_DIR"
MOST = 200  # folders that the list keeps; older ones are forgotten


def index_path() -> Path | None:
    """Return the file that lists the folders of runs; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    try:
        base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "mslaunch" / "folders"


def remember(runs_dir: Path) -> None:
    """Add a folder of runs to the list, unless it is there already; shorten the list where it has grown long."""
    path, lines = index_path(), _read_index()
    is_listed = str(runs_dir) in lines and len(lines) <= MOST
    if path is None or is_listed or "\n" in str(runs_dir):
        return
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(lines) >= 2 * MOST:
            existing = [line for line in dict.fromkeys(lines) if _is_folder(Path(line))]
            write_atomically(path, "".join(f"{line}\n" for line in existing[-MOST:]))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            os.write(file, os.fsencode(f"{runs_dir}\n"))
        finally:
            os.close(file)


def _read_index() -> list[str]:
    path = index_path()
    if path is None:
        return []
    try:
        text = read_text(path, errors="surrogateescape", only_files=True)
    except (OSError, Unreadable):
        return []
    return [line for line in text.split("\n") if line.startswith("/") and "\0" not in line]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def remembered(below: Path | None = None) -> list[Path]:
    """Return the folders of the list that still exist, the one used first at the front; only those `below` one.

    Others are not looked at then: they may lie on a file server that does not answer.
    """
    folders = map(Path, dict.fromkeys(_read_index()))
    return [folder for folder in folders if (below is None or folder.is_relative_to(below)) and _is_folder(folder)]


def default_runs_dir(environment: Mapping[str, str]) -> str:
    """Return the folder of runs that is used where none is named."""
    return environment.get(VARIABLE) or RUNS_DIR


def folders_to_search(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders that may hold a run, the default one first.

    MSLAUNCH_RUNS_DIR names one folder and no other. Without it these are ./mslaunch-runs, the folders below the current
    one that this user has named for a launch, and the folder of runs that the current one lies in. The ./mslaunch-runs
    of a project below are not searched.
    """
    default = Path(default_runs_dir(environment))
    if environment.get(VARIABLE):
        return [default]
    here = Path.cwd()
    folders = [default, *_around(here)]
    for folder in remembered(here):
        above = (RunFolder(parent) for parent in folder.parents if parent.is_relative_to(here))
        is_in_run = any(is_file(run.record) for run in above)  # a rank has launched jobs there
        if folder.name != RUNS_DIR and not is_in_run:
            folders.append(folder)
    return list({folder.resolve(): folder for folder in reversed(folders)}.values())[::-1]


def _around(here: Path) -> list[Path]:
    """Return the folder of runs that the current folder is, or lies in."""
    for place in (here, *here.parents):
        if is_file(RunFolder(place).record):
            return [runs_root(place.parent)]
    return [here] if is_file(here / layout.LATEST / layout.RECORD) else []


def arguments_for(folder: RunFolder, environment: Mapping[str, str]) -> str:
    """Return what to type after a verb for a run: its name, with its folder of runs where that is not the default."""
    return shlex.quote(folder.name) + option_for(runs_root(folder.path.parent), environment)


def option_for(runs_dir: Path, environment: Mapping[str, str]) -> str:
    """Return ` --runs-dir DIR` for a folder of runs; nothing for the default one."""
    if runs_dir.resolve() == Path(default_runs_dir(environment)).resolve():
        return ""
    return f" --runs-dir {shlex.quote(path_from_here(runs_dir))}"


def path_from_here(path: Path) -> str:
    """Return a path as a user would type it in the current folder."""
    target, here = path.resolve(), Path.cwd().resolve()
    return os.fspath(target.relative_to(here) if target.is_relative_to(here) else target)


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first, except those that another user keeps closed."""
    try:
        if not runs_dir.is_dir():
            return []
        os.scandir(runs_dir).close()
    except OSError as error:
        raise NotReadyError(
            f"{runs_dir}: the folder of runs cannot be read ({error.strerror}). Name another with --runs-dir."
        ) from None
    return sorted(_runs_in(runs_dir), key=_age)


def _age(folder: RunFolder) -> tuple[int, str]:
    """Return what runs are sorted by: when the first plan was written, and the name."""
    path = str(folder.path)
    planned = _time_written(path, layout.earlier_name(layout.PLAN, 0))
    if planned is None:
        planned = _time_written(path, layout.PLAN)
    return planned or 0, folder.run_id


def _runs_in(place: Path) -> Iterator[RunFolder]:
    """Yield the runs in a folder, and those of its sweeps; a folder whose name has a dot first is being removed."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if _time_written(entry.path, layout.RECORD) is not None:
                yield RunFolder(place / entry.name)
            elif _time_written(entry.path, layout.SWEEP) is not None:
                yield from _runs_in(place / entry.name)


def _time_written(folder: str, name: str) -> int | None:
    """Return when a file was written; None if there is none, or its folder is closed."""
    try:
        status = os.stat(f"{folder}/{name}")  # noqa: PTH116 -- a third of the time, and there may be thousands of runs
    except OSError:
        return None
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None


def list_all(folders: Sequence[Path]) -> list[RunFolder]:
    """Return the runs of several folders, oldest first; ignore one after the first that cannot be read."""
    first, *others = folders
    runs = list_runs(first)
    for folder in others:
        with suppress(NotReadyError):
            runs += list_runs(folder)
    return sorted(runs, key=_age) if others else runs


def find_folder(folders: Sequence[Path], name: str | None) -> RunFolder:
    """Find a run by its path, its name or an unambiguous part of it: a beginning overrides any other part.

    Without a name it is the caller's newest run, or the newest of all if the caller has none.
    """
    if name and is_file(Path(name) / layout.RECORD):
        return RunFolder(Path(name).resolve())
    if name and "/" in name and is_file(SweepFolder(Path(name)).record):
        sweep = Path(name).resolve()
        raise RequestError(f"{name}: a sweep. Name one of its runs, for example {sweep.name}/1.")
    runs = list_all(folders)
    names = [run.name for run in runs]
    if name and "/" in name and not any(name in run for run in names):
        raise RequestError(f"{name}: neither a run nor a folder of logs. `mslaunch ps` lists the runs.")
    if runs and name in (None, layout.LATEST):
        return ([run for run in runs if ownership.is_own(run)] or runs)[-1]
    matches: list[RunFolder] = []
    for fits in (str.__eq__, str.startswith, str.__contains__):
        matches = matches or [run for run in runs if name and fits(run.name, name)]
    if not matches:
        raise NoSuchRun(name or layout.LATEST, ", ".join(map(str, folders)), names)
    if len(matches) > 1:
        several = len({runs_root(run.path.parent) for run in matches}) > 1
        raise AmbiguousRun(str(name), [str(run.path.resolve()) if several else run.name for run in matches])
    return matches[0]


def runs(runs_dir: PathLike | None = None) -> list[Run]:
    """Return the runs of a folder, oldest first."""
    from mslaunch.run.run import Run

    return [Run(folder) for folder in list_runs(Path(runs_dir or default_runs_dir(os.environ)))]


def find_run(name: str | None = None, runs_dir: PathLike | None = None) -> Run:
    """Return the run of this name, or of which it is an unambiguous part; the newest where none is named.

    Without a folder, in the argument or in MSLAUNCH_RUNS_DIR, those below the current one are searched as well.
    """
    from mslaunch.run.run import Run

    return Run(find_folder(places_for(runs_dir), name))


def find_runs(name: str, runs_dir: PathLike | None = None) -> list[Run]:
    """Return the runs of the sweep of this name that have begun; where there is none, the run of this name alone."""
    from mslaunch.run.sweep_record import find_named, runs_of

    sweep = find_named(places_for(runs_dir), name)
    return [find_run(name, runs_dir)] if sweep is None else runs_of(sweep)


def places_for(runs_dir: PathLike | None) -> list[Path]:
    """Return the folders of runs in which to look: the one that is named, or those that are likely."""
    return [Path(runs_dir)] if runs_dir else folders_to_search(os.environ)


def unexpected_place(run: Run, name: str | None) -> str | None:
    """Return the folder of runs that holds a run which was found by its name, where that is not the default one."""
    if name and Path(name).resolve() == run.path.resolve():
        return None
    root = runs_root(run.path.parent)
    return path_from_here(root) if option_for(root, os.environ) else None
