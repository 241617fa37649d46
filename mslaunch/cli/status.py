"""`mslaunch status`: one run, its ranks, how they stand, how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial

from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import (
    describe_attempts,
    describe_labels,
    describe_warnings,
    duration,
    how_it_ended,
    state_words,
)
from mslaunch.cli.console.tables import Narrowing, columns
from mslaunch.cli.parsing import common
from mslaunch.cli.watch.model import find_progress
from mslaunch.metrics.progress import short
from mslaunch.metrics.rows import Number, Source, to_json_value
from mslaunch.run.labels import read as read_labels
from mslaunch.run.record import RunRecord
from mslaunch.text import byte_count, count_words, counted, plain, seconds_words, shorten_middle

Values = Mapping[str, Number]


def _of(name: str, whole: str, values: Values) -> str:
    return "/".join(count_words(values[key]) for key in (name, whole) if name in values and key in values)


def _with(name: str, write: Callable[[Number], str], values: Values) -> str:
    return write(values[name]) if name in values else ""


COLUMNS: dict[str, Callable[[Values], str]] = {
    "EPOCH": partial(_of, "epoch", "epochs"),
    "STEP": partial(_of, "step", "steps"),
    "LOSS": partial(_with, "loss", short),
    "LR": partial(_with, "lr", short),
    "STEP TIME": partial(_with, "step_time", seconds_words),
    "CPU": partial(_with, "cpu", lambda number: f"{number:.2f}"),
    "MEMORY": partial(_with, "memory", lambda number: byte_count(int(number))),
}
"""What a row of the table of ranks shows of its numbers, where any rank has printed them."""


def number_columns(last: Mapping[Source, Values], order: list[int]) -> list[tuple[str, ...]]:
    """Return the columns that have something to show, each with its heading, for ranks in this order."""
    of_ranks = sorted(source for source in last if source.rank is not None)
    ranks = {source.rank: last[source] for source in of_ranks}  # the last attempt is what stays
    texts = [(name, *(write(ranks.get(rank, {})) for rank in order)) for name, write in COLUMNS.items()]
    return [column for column in texts if any(column[1:])]


NOTES_SHOWN = 5
NARROWING = Narrowing(
    dull={"HOST": "localhost", "DEVICE": "", "ENDED BY": ""},
    optional=("ENDED BY", "CPU", "PID", "DEVICE", "HOST", "MEMORY", "EPOCH", "LR", "STEP TIME"),
    texts={"HOST": shorten_middle},
)

app = common.new_app()


@app.command()
def status(name: common.Run = None, runs_dir: common.RunsDir = None, as_json: common.Json = False) -> None:
    """Show one run: its ranks, how they stand, how it ended."""
    run = common.find_run(name, runs_dir)
    record, labels, numbers = run.record, read_labels(run.folder), run.last_numbers()
    if as_json:
        metrics = []
        for source, values in numbers.items():
            who = {key: part for key, part in source._asdict().items() if part is not None}
            metrics.append(who | {key: to_json_value(number) for key, number in values.items()})
        common.print_json({**record.to_dict(), "metrics": metrics, "labels": labels.to_dict()})
        return
    code = "" if record.exit_code is None else f", exit code {record.exit_code}"
    print(plain(f"{run.name}: {state_words(record)}{code}, {duration(record, datetime.now().astimezone())}"))
    where = f", {job}" if (job := run.queue_job) else ""
    print(plain(f"{counted(record.world_size, 'rank')}, {record.method}{where}, {record.script}; {run.path}"))
    print("".join(f"{plain(line)}\n" for line in describe_warnings(record)), end="")
    progress = find_progress(record, run.last_table(), time.time()) if record.state == "running" else None
    print(f"{plain(' | '.join(progress.words))}\n" if progress else "")
    if lines := describe_labels(labels):
        print(lines)
    print(describe_attempts(record), end="")
    print(_table(record, numbers), end="")
    if record.notes:
        print("\n" + "".join(f"note: {note}\n" for note in record.notes[-NOTES_SHOWN:]), end="")
    if record.verdict:
        print()
        print(verdict_text(record, sys.stdout.isatty()), end="")


def _table(record: RunRecord, numbers: Mapping[Source, Values]) -> str:
    rows = [("RANK", "HOST", "DEVICE", "PID", "STATE", "ENDED BY")]
    for rank in record.ranks:
        device, pid = ("" if number is None else str(number) for number in (rank.device_id, rank.pid))
        state = "gone" if record.state == "lost" and rank.state == "running" else rank.state
        rows.append((str(rank.rank), rank.host, device, pid, state, how_it_ended(rank.exit_code, rank.signal)))
    added = number_columns(numbers, [rank.rank for rank in record.ranks])
    return columns([(*row, *(column[at] for column in added)) for at, row in enumerate(rows)], NARROWING)
