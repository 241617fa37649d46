"""The run that a verb was given, or the newest; where it is not in the default folder of runs, that is said."""

from __future__ import annotations

import sys

from mslaunch import api


def find_run(name: str | None, runs_dir: str | None) -> api.Run:
    """Find a run, and say on stderr in which folder of runs it was found where the user could not know."""
    found = api.find_run(name, runs_dir)
    _name_place(found, name, runs_dir)
    return found


def find_runs(name: str, runs_dir: str | None) -> list[api.Run]:
    """Find the runs of a sweep, or a run, and say likewise."""
    runs = api.find_runs(name, runs_dir)
    for run in runs[:1]:
        _name_place(run, name, runs_dir)
    return runs


def _name_place(run: api.Run, name: str | None, runs_dir: str | None) -> None:
    if runs_dir is None and (place := api.unexpected_place(run, name)):
        print(f"mslaunch: {run.name} is in {place}", file=sys.stderr, flush=True)
