"""`mslaunch collect`: fetch logs that could not be fetched when a run ended, from hosts that can be reached again."""

from __future__ import annotations

import typer

from mslaunch.cli.parsing import common
from mslaunch.errors import ExitCode
from mslaunch.launcher.collect import collect_again

app = common.new_app()


@app.command()
def collect(name: common.Run = None, runs_dir: common.RunsDir = None, as_owner: common.AsOwner = False) -> None:
    """Fetch logs that could not be fetched when a run ended."""
    run = common.find_run(name, runs_dir, as_owner)
    fetched, unreached, notes = collect_again(run)
    for note in notes:
        print(note)
    print(f"{run.run_id}: {len(fetched)} files fetched into {run.path}")
    for problem in unreached:
        print(f"mslaunch: {problem}")
    raise typer.Exit(ExitCode.NOT_READY if unreached else 0)
