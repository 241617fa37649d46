"""`mslaunch ps`: runs, past and present."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli import basics, options
from mslaunch.cli.basics import columns
from mslaunch.cli.describe import duration
from mslaunch.errors import RecordUnreadable

app = basics.new_app()


@app.command()
def ps(
    runs_dir: options.RunsDir = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All runs, not the last 20 only.")] = False,
    as_json: basics.Json = False,
) -> None:
    """List runs, past and present."""
    records = list(_records(runs_dir))
    if not everything:
        records = records[-20:]
    if as_json:
        print(json.dumps([{"name": name, **item.to_dict()} for name, item in records], indent=1))
        return
    if not records:
        print(
            "No runs here yet: start one with `mslaunch train`, or name their folder with --runs-dir.", file=sys.stderr
        )
    now = datetime.now().astimezone()
    restarted = any(item.attempts for _, item in records)
    head = ("ATTEMPTS",) if restarted else ()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "CODE", *head, "RANKS", "METHOD", "STARTED", "TIME", "SCRIPT")]
    for name, item in records:
        code = "" if item.exit_code is None else str(item.exit_code)
        started = f"{datetime.fromisoformat(item.started):%m-%d %H:%M:%S}"
        attempts = (str(len(item.attempts) + 1),) if restarted else ()
        rows.append(
            (
                name,
                item.state,
                code,
                *attempts,
                str(item.world_size),
                item.method,
                started,
                duration(item, now),
                item.script,
            )
        )
    print(columns(rows), end="")


def _records(runs_dir: str | None) -> Iterator[tuple[str, api.RunRecord]]:
    for run in api.runs(runs_dir):
        try:
            yield run.name, run.record
        except RecordUnreadable as error:
            print(f"mslaunch: {error}", file=sys.stderr)
