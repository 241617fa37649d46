"""Where runs are looked for when no folder of runs is named, and how a run is named in a command to type."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from mslaunch.shared import layout
from mslaunch.store import known_folders
from mslaunch.store.layout import RunFolder, is_file, runs_root

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
    named = [one for one in known_folders.known(here) if one.name != RUNS_DIR and not _in_a_run(one, here)]
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
