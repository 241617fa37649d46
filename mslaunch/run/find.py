"""Finding runs and sweeps by their names, for programs and for the command line."""

from __future__ import annotations

import os
from pathlib import Path

from mslaunch.run import search
from mslaunch.run.paths import runs_root
from mslaunch.run.run import Run
from mslaunch.run.search import default_runs_dir, folders_to_search, option_for, path_from_here

PathLike = str | os.PathLike[str]


def runs(runs_dir: PathLike | None = None) -> list[Run]:
    """Return the runs of a folder, oldest first."""
    return [Run(folder) for folder in search.list_runs(Path(runs_dir or default_runs_dir(os.environ)))]


def find_run(name: str | None = None, runs_dir: PathLike | None = None) -> Run:
    """Return the run of this name, or of which it is an unambiguous part; the newest where none is named.

    Without a folder, in the argument or in MSLAUNCH_RUNS_DIR, those below the current one are searched as well.
    """
    return Run(search.find_run(places_for(runs_dir), name))


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
