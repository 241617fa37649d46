"""`mslaunch status`: one run, its ranks, how they stand, how it ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mslaunch import api
from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import (
    describe_attempts,
    describe_labels,
    describe_warnings,
    duration,
    how_it_ended,
    state_words,
)
from mslaunch.cli.console.tables import Narrowing
from mslaunch.cli.parsing import common, options
from mslaunch.cli.parsing.common import columns
from mslaunch.cli.parsing.run_options import find_run
from mslaunch.cli.watch.model import find_progress
from mslaunch.metrics.progress import short
from mslaunch.metrics.rows import Number, Source, to_json_value
from mslaunch.text import byte_count, count_words, counted, plain, seconds_words, shorten_middle

Values = Mapping[str, Number]


def _of(name: str, whole: str) -> Callable[[Values], str]:
    def words(values: Values) -> str:
        if name not in values:
            return ""
        return count_words(values[name]) + (f"/{count_words(values[whole])}" if whole in values else "")

    return words


def _with(name: str, write: Callable[[Number], str]) -> Callable[[Values], str]:
    return lambda values: write(values[name]) if name in values else ""


COLUMNS: dict[str, Callable[[Values], str]] = {
    "EPOCH": _of("epoch", "epochs"),
    "STEP": _of("step", "steps"),
    "LOSS": _with("loss", short),
    "LR": _with("lr", short),
    "STEP TIME": _with("step_time", seconds_words),
    "CPU": _with("cpu", lambda number: f"{number:.2f}"),
    "MEMORY": _with("memory", lambda number: byte_count(int(number))),
}
"""What a row of the table of ranks shows of its numbers, where any rank has told them."""


def number_columns(last: Mapping[Source, Values], order: list[int]) -> list[tuple[str, ...]]:
    """Return the columns that have something to show, each with its heading, for ranks in this order."""
    of_ranks = sorted(source for source in last if source.rank is not None)
    ranks = {source.rank: last[source] for source in of_ranks}  # the last attempt is what stays
    columns = [(name, *(write(ranks.get(rank, {})) for rank in order)) for name, write in COLUMNS.items()]
    return [column for column in columns if any(column[1:])]


def last_to_json(last: Mapping[Source, Values]) -> list[dict[str, Any]]:
    """Return the last numbers of every source as plain values."""
    return [
        {**{name: value for name, value in source._asdict().items() if value is not None}, **_plain(values)}
        for source, values in last.items()
    ]


def _plain(values: Values) -> dict[str, Any]:
    return {name: to_json_value(number) for name, number in values.items()}


NOTES_SHOWN = 5
NARROWING = Narrowing(
    dull={"HOST": "localhost", "DEVICE": "", "ENDED BY": ""},
    optional=("ENDED BY", "CPU", "PID", "DEVICE", "HOST", "MEMORY", "EPOCH", "LR", "STEP TIME"),
    texts={"HOST": shorten_middle},
)

app = common.new_app()


@app.command()
def status(run: options.Run = None, runs_dir: options.RunsDir = None, as_json: common.Json = False) -> None:
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
        rows.append((str(rank.rank), rank.host, device, pid, rank.state, how_it_ended(rank.exit_code, rank.signal)))
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
