"""`mslaunch stop`: end a run, and wait until nothing of it is left."""

from __future__ import annotations

import json

from mslaunch.cli import basics, options
from mslaunch.cli.runs import named_run
from mslaunch.launch import history
from mslaunch.plan.model import from_json

app = basics.new_app()


@app.command()
def stop(run: options.Run = None, runs_dir: options.RunsDir = None, as_json: basics.Json = False) -> None:
    """Stop a run, and wait until nothing of it is left."""
    folder = named_run(run, runs_dir)
    grace = from_json(folder.plan.read_text()).limits.grace
    final = history.stop(folder, wait=grace + 20)
    print(json.dumps(final.to_dict(), indent=1) if as_json else f"{final.run_id}: {final.state}")
