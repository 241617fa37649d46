"""`mslaunch stop`: end a run, and wait until nothing of it is left."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.errors import ExitCode, RequestError
from mslaunch.run.find import places_for
from mslaunch.run.record import ENDED
from mslaunch.run.sweep_record import stop_all as stop_everything
from mslaunch.run.sweep_record import stop_named

app = common.new_app()


@app.command()
def stop(
    name: common.Run = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All your runs here that go on.")] = False,
    runs_dir: common.RunsDir = None,
    as_owner: common.AsOwner = False,
    as_json: common.Json = False,
) -> None:
    """Stop a run, or a whole sweep, and wait until nothing of it is left."""
    if everything:
        _stop_all(name, runs_dir, as_owner, as_json)
        return
    if name and stop_named(places_for(runs_dir), name, as_owner):
        print(json.dumps({"sweep": name, "state": "stopped"}) if as_json else f"{name}: stopped")
        return
    run = common.find_run(name, runs_dir, as_owner)
    final = run.stop()
    if as_json:
        common.print_json(run.record.to_dict())
    else:
        print(f"{run.name}: {final.state}")


def _stop_all(name: str | None, runs_dir: str | None, as_owner: bool, as_json: bool) -> None:
    """Stop all runs, and list them; a run that could not be stopped gives the exit code."""
    if name or as_owner:
        raise RequestError(f"--all and {name or '--as-owner'} do not go together. Leave one of them out.")
    stopped = stop_everything(places_for(runs_dir))
    if as_json:
        common.print_json([{"name": stopped_name, "outcome": outcome} for stopped_name, outcome in stopped])
    else:
        lines = [f"{stopped_name}: {outcome}" for stopped_name, outcome in stopped]
        print("\n".join(lines) or "No run is going on here.")
    if any(outcome not in ENDED for _, outcome in stopped):
        raise typer.Exit(ExitCode.NOT_READY)
