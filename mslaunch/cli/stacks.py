"""`mslaunch stacks`: where the ranks of a running job stand, grouped by identical stack."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from mslaunch.cli import basics, options
from mslaunch.cli.runs import named_run
from mslaunch.errors import NotReadyError, RequestError
from mslaunch.launch import identity, record
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.signals import STACKS

PATIENCE = 30.0

app = basics.new_app()


@app.command()
def stacks(run: options.Run = None, runs_dir: options.RunsDir = None, as_json: basics.Json = False) -> None:
    """Show where the ranks of a running job stand, without disturbing it."""
    folder = named_run(run, runs_dir)
    found = record.load(folder)
    if found.state != "running" or found.launcher is None:
        raise RequestError(f"{found.run_id} is not running ({found.state}). Stacks can be taken of a running job only.")
    if not identity.is_here(found.launcher):
        raise NotReadyError(f"{found.run_id} was launched on {found.launcher['host']}. Run `mslaunch stacks` there.")
    seen = folder.events.stat().st_size
    with suppress(ProcessLookupError):
        os.kill(found.launcher["pid"], STACKS)
    groups = next(_taken(folder, seen), None)
    if groups is None:
        raise NotReadyError(f"{found.run_id}: no stacks came in {PATIENCE:.0f} s. See {folder.path}/rank_*/stack.txt.")
    if as_json:
        print(json.dumps(groups))
        return
    print("\n".join(groups))
    print(f"\nAll threads: {folder.path}/rank_<R>/stack.txt")


def _taken(folder: RunFolder, seen: int) -> Iterator[list[str]]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with folder.events.open("rb") as file:
            file.seek(seen)
            for line in file.read().split(b"\n")[:-1]:
                if line.startswith(b'{"ev": "stacks-taken"'):
                    yield json.loads(line)["groups"]
        time.sleep(0.05)
