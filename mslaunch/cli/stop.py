"""`mslaunch stop`: end a run, and wait until nothing of it is left."""

from __future__ import annotations

import json

from mslaunch import api
from mslaunch.cli import basics, options

app = basics.new_app()


@app.command()
def stop(
    run: options.Run = None,
    runs_dir: options.RunsDir = None,
    as_owner: options.AsOwner = False,
    as_json: basics.Json = False,
) -> None:
    """Stop a run, or a whole sweep, and wait until nothing of it is left."""
    if run and api.stop_sweep(run, runs_dir, as_owner):
        print(json.dumps({"sweep": run, "state": "stopped"}) if as_json else f"{run}: stopped")
        return
    found = api.find_run(run, runs_dir)
    if as_owner:
        api.become_owner(found)
    final = found.stop()
    print(json.dumps(found.record.to_dict(), indent=1) if as_json else f"{found.name}: {final.state}")
