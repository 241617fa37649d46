"""`mslaunch status`: one run, its ranks, how they stand, how it ended."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime

from mslaunch import api
from mslaunch.cli import basics, options
from mslaunch.cli.basics import columns
from mslaunch.cli.console import verdict_text
from mslaunch.cli.describe import describe_attempts, describe_warnings, duration, how_it_ended
from mslaunch.cli.describe_labels import describe_labels
from mslaunch.cli.found_run import find_run
from mslaunch.cli.numbers import last_to_json, number_columns
from mslaunch.cli.state_words import state_words
from mslaunch.cli.tables import Narrowing
from mslaunch.cli.watch.model import find_progress
from mslaunch.words import counted, plain, shorten_middle

NOTES_SHOWN = 5
NARROWING = Narrowing(
    dull={"HOST": "localhost", "DEVICE": "", "ENDED BY": ""},
    optional=("ENDED BY", "CPU", "PID", "DEVICE", "HOST", "MEMORY", "EPOCH", "LR", "STEP TIME"),
    texts={"HOST": shorten_middle},
)

app = basics.new_app()


@app.command()
def status(run: options.Run = None, runs_dir: options.RunsDir = None, as_json: basics.Json = False) -> None:
    """Show one run: its ranks, how they stand, how it ended."""
    shown = find_run(run, runs_dir)
    found, labels = shown.record, api.labels_of(shown)
    if as_json:
        numbers = last_to_json(shown.last_numbers())
        print(json.dumps({**found.to_dict(), "metrics": numbers, "labels": labels.to_dict()}, indent=1))
        return
    code = "" if found.exit_code is None else f", exit code {found.exit_code}"
    print(plain(f"{shown.name}: {state_words(found)}{code}, {duration(found, datetime.now().astimezone())}"))
    where = f", {job}" if (job := shown.queue_job) else ""
    print(plain(f"{counted(found.world_size, 'rank')}, {found.method}{where}, {found.script}; {shown.path}"))
    print("".join(f"{plain(line)}\n" for line in describe_warnings(found)), end="")
    print(_progress(shown, found))
    if told := describe_labels(labels):
        print(told)
    print(describe_attempts(found), end="")
    rows = [("RANK", "HOST", "DEVICE", "PID", "STATE", "ENDED BY")]
    for rank in found.ranks:
        device, pid = ("" if value is None else str(value) for value in (rank.device_id, rank.pid))
        state = "gone" if found.state == "lost" and rank.state == "running" else rank.state
        rows.append((str(rank.rank), rank.host, device, pid, state, how_it_ended(rank.exit_code, rank.signal)))
    added = number_columns(shown.last_numbers(), [rank.rank for rank in found.ranks])
    print(columns([(*row, *(column[at] for column in added)) for at, row in enumerate(rows)], NARROWING), end="")
    if found.notes:
        print("\n" + "".join(f"note: {note}\n" for note in found.notes[-NOTES_SHOWN:]), end="")
    if found.verdict:
        print()
        print(verdict_text(found, sys.stdout.isatty()), end="")


def _progress(run: api.Run, found: api.RunRecord) -> str:
    """Say how far a running job is, and since when it makes no step."""
    progress = find_progress(found, run.last_table(), time.time()) if found.state == "running" else None
    return f"{plain(' | '.join(progress.words))}\n" if progress else ""
