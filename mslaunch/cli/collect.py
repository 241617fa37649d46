"""`mslaunch collect`: fetch logs that could not be fetched when a run ended, from hosts that can be reached again."""

from __future__ import annotations

import typer

from mslaunch import api
from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.errors import ExitCode

app = common.new_app()


@app.command()
def collect(run: options.Run = None, runs_dir: options.RunsDir = None, as_owner: options.AsOwner = False) -> None:
    """Fetch logs that could not be fetched when a run ended."""
    found = find_run(run, runs_dir)
    if as_owner:
        api.become_owner(found)
    fetched, unreached, notes = api.collect(found)
    for note in notes:
        print(note)
    print(f"{found.run_id}: {len(fetched)} files fetched into {found.path}")
    for trouble in unreached:
        print(f"mslaunch: {trouble}")
    raise typer.Exit(ExitCode.NOT_READY if unreached else 0)
