"""`mslaunch outputs`: what a run's ranks have written, and where it is."""

from __future__ import annotations

import sys
from dataclasses import asdict

from mslaunch.cli.console.tables import columns
from mslaunch.cli.parsing import common
from mslaunch.text import byte_count

app = common.new_app()


@app.command()
def outputs(name: common.Run = None, runs_dir: common.RunsDir = None, as_json: common.Json = False) -> None:
    """List what a run's ranks have written: files, and folders with the number and size of their files."""
    run = common.find_run(name, runs_dir)
    files = run.outputs()
    if as_json:
        common.print_json([asdict(file) for file in files])
        return
    if not files:
        print(f"{run.name} has written nothing into its ranks' folders.", file=sys.stderr)
        return
    rows = [(file.path, str(file.files), byte_count(file.bytes)) for file in files]
    print(columns([("PATH", "FILES", "SIZE"), *rows]), end="")
