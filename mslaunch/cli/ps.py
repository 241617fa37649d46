"""`mslaunch ps`: runs, past and present."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli import basics, options
from mslaunch.cli.basics import columns
from mslaunch.cli.describe import duration
from mslaunch.errors import MslaunchError, RecordUnreadable
from mslaunch.words import counted

app = basics.new_app()


SHOWN = 20


@app.command()
def ps(
    runs_dir: options.RunsDir = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"All runs, not the last {SHOWN} only; also those of other folders.")
    ] = False,
    as_json: basics.Json = False,
) -> None:
    """List runs, past and present."""
    runs = [(run.name, run) for run in api.runs(runs_dir)]
    hidden = 0 if everything else max(0, len(runs) - SHOWN)
    records = list(_records([*(_elsewhere(runs_dir) if everything else ()), *runs[hidden:]]))
    if as_json:
        print(json.dumps([{"name": name, **item.to_dict()} for name, item in records], indent=1))
        return
    if not records and not hidden:
        print(
            "No runs here yet: start one with `mslaunch train`, or name their folder with --runs-dir.", file=sys.stderr
        )
    now = datetime.now().astimezone()
    restarted = any(item.attempts for _, item in records)
    head = ("ATTEMPTS",) if restarted else ()
    rows: list[tuple[str, ...]] = [("RUN", "STATE", "CODE", *head, "RANKS", "METHOD", "STARTED", "TIME", "SCRIPT")]
    rows += [_row(name, item, now, restarted) for name, item in records]
    print(columns(rows), end="", flush=True)
    if hidden:
        print(f"... {counted(hidden, 'older run')}; --all shows {'it' if hidden == 1 else 'them'}", file=sys.stderr)


def _row(name: str, item: api.RunRecord, now: datetime, restarted: bool) -> tuple[str, ...]:
    code = "" if item.exit_code is None else str(item.exit_code)
    started = f"{datetime.fromisoformat(item.started).astimezone():%m-%d %H:%M:%S}"  # local, wherever it was launched
    attempts = (str(len(item.attempts) + 1),) if restarted else ()
    ranks = str(item.world_size)
    return name, item.state, code, *attempts, ranks, item.method, started, duration(item, now), item.script


def _elsewhere(runs_dir: str | None) -> Iterator[tuple[str, api.Run]]:
    """The runs of other folders, each called by its path, by which every verb finds it."""
    here = Path(runs_dir or api.default_runs_dir()).resolve()
    for folder in api.known_folders():
        if Path(folder) != here:
            with suppress(MslaunchError):  # a folder that cannot be read any more
                yield from ((str(run.path), run) for run in api.runs(folder))


def _records(runs: Iterable[tuple[str, api.Run]]) -> Iterator[tuple[str, api.RunRecord]]:
    for name, run in runs:
        try:
            yield name, run.record
        except RecordUnreadable as error:
            print(f"mslaunch: {error}", file=sys.stderr)
