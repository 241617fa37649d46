"""`mslaunch collect`: fetch logs that could not be fetched when a run ended, from hosts that can be reached again."""

from __future__ import annotations

from pathlib import Path

import typer

from mslaunch.cli import basics, options, runs
from mslaunch.errors import RequestError
from mslaunch.launch import record
from mslaunch.launch.collect import collect_again
from mslaunch.plan.model import from_json

app = basics.new_app()


@app.command()
def collect(run: options.Run = None, runs_dir: options.RunsDir = None) -> None:
    """Fetch logs that could not be fetched when a run ended."""
    folder = runs.named_run(run, runs_dir)
    plan = from_json(folder.plan.read_text())
    if plan.transport == "local":
        raise RequestError(f"{folder.run_id} ran on this machine: its logs are in {folder.path} already.")
    if record.load(folder).state in ("queued", "running"):
        raise RequestError(f"{folder.run_id} is still running; its logs are collected when it ends.")
    fetched, unreached, notes = collect_again(plan, folder)
    for note in notes:
        print(note)
    print(f"{folder.run_id}: {len(fetched)} files fetched into {Path(folder.path)}")
    for trouble in unreached:
        print(f"mslaunch: {trouble}")
    raise typer.Exit(3 if unreached else 0)
