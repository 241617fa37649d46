"""`mslaunch outputs`: what a run's ranks have written, and where it is."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.common import columns
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.text import byte_count

app = common.new_app()


@app.command()
def outputs(run: options.Run = None, runs_dir: options.RunsDir = None, as_json: common.Json = False) -> None:
    """List what a run's ranks have written: files, and folders with the number and size of their files."""
    shown = find_run(run, runs_dir)
    found = shown.outputs()
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return
    if not found:
        print(f"{shown.name} has written nothing into its ranks' folders.", file=sys.stderr)
        return
    rows = [("PATH", "FILES", "SIZE"), *((one.path, str(one.files), byte_count(one.bytes)) for one in found)]
    print(columns(rows), end="")
