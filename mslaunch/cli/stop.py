"""`mslaunch stop`: end a run, and wait until nothing of it is left."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.errors import ExitCode, RequestError

app = common.new_app()


@app.command()
def stop(
    run: options.Run = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All your runs here that go on.")] = False,
    runs_dir: options.RunsDir = None,
    as_owner: options.AsOwner = False,
    as_json: common.Json = False,
) -> None:
    """Stop a run, or a whole sweep, and wait until nothing of it is left."""
    if everything:
        _stop_all(run, runs_dir, as_owner, as_json)
        return
    if run and api.stop_sweep(run, runs_dir, as_owner):
        print(json.dumps({"sweep": run, "state": "stopped"}) if as_json else f"{run}: stopped")
        return
    found = find_run(run, runs_dir)
    if as_owner:
        api.become_owner(found)
    final = found.stop()
    print(json.dumps(found.record.to_dict(), indent=1) if as_json else f"{found.name}: {final.state}")


def _stop_all(run: str | None, runs_dir: str | None, as_owner: bool, as_json: bool) -> None:
    """Stop everything, and say what that was; what could not be stopped gives the exit code."""
    if run or as_owner:
        raise RequestError(f"--all and {run or '--as-owner'} do not go together. Leave one of them out.")
    stopped = api.stop_all(runs_dir)
    if as_json:
        print(json.dumps([{"name": name, "outcome": outcome} for name, outcome in stopped], indent=1))
    else:
        print("".join(f"{name}: {outcome}\n" for name, outcome in stopped) or "No run is going on here.\n", end="")
    if any(outcome not in api.ENDED for _, outcome in stopped):
        raise typer.Exit(ExitCode.NOT_READY)
