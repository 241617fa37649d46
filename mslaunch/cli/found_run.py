"""The run that a verb was given, or the newest; where it is not in the default folder of runs, that is said."""

from __future__ import annotations

import sys

from mslaunch import api


def find_run(name: str | None, runs_dir: str | None) -> api.Run:
    """Find a run, and say on stderr in which folder of runs it was found where the user could not know."""
    found = api.find_run(name, runs_dir)
    if runs_dir is None and (place := api.unexpected_place(found, name)):
        print(f"mslaunch: {found.name} is in {place}", file=sys.stderr, flush=True)
    return found
