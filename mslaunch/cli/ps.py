"""`mslaunch ps`: runs, past and present."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mslaunch.cli.console.tables import Narrowing, columns
from mslaunch.cli.parsing import common
from mslaunch.errors import MslaunchError, RecordUnreadable, RequestError, did_you_mean
from mslaunch.metrics.progress import short
from mslaunch.run import find, labels
from mslaunch.run.disk_usage import describe_use, measure
from mslaunch.run.labels import Labels
from mslaunch.run.liveness import current
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import STATES
from mslaunch.run.summaries import RunSummary, list_summaries, sum_sizes
from mslaunch.text import byte_count, counted, elapsed_words, first_line, shorten, shorten_middle

app = common.new_app()

LAST = 20  # how many runs are listed without --all
NOTE_WIDTH = 40
NamedSummary = tuple[str, RunFolder, RunSummary | RecordUnreadable]


@dataclass(frozen=True)
class _Line:
    """A run that is listed."""

    name: str
    folder: RunFolder
    summary: RunSummary
    labels: Labels
    bytes: int | None  # what its folder takes now; None unless --size asks for it


@dataclass(frozen=True)
class _Column:
    """A column of the table."""

    heading: str
    text: Callable[[_Line], str]
    appears: Callable[[_Line], object] | None = None  # the table has the column only if this is true of a line
    leaves: int | None = None
    """When it leaves a table that is wider than the terminal: the column with the least number leaves first."""
    dull: str | None = None  # on a terminal, a column that has this text in all lines is left out
    shorten: Callable[[str, int], str] | None = None  # how a terminal that is too narrow shortens it


COLUMNS = (
    _Column("RUN", lambda line: line.name),
    _Column("STATE", lambda line: line.summary.state),
    _Column("CODE", lambda line: _or_empty(line.summary.exit_code, str), leaves=2),
    _Column("ATTEMPTS", lambda line: str(line.summary.attempts + 1), lambda line: line.summary.attempts, leaves=3),
    _Column("RANKS", lambda line: str(line.summary.world_size), leaves=5),
    _Column("METHOD", lambda line: line.summary.method, leaves=1, dull="dynamic"),
    _Column("STARTED", lambda line: f"{_began(line.summary).astimezone():%m-%d %H:%M:%S}", leaves=4),
    _Column("TIME", lambda line: elapsed_words(line.summary.seconds)),
    _Column("SIZE", lambda line: _or_empty(line.bytes, byte_count), lambda line: line.bytes is not None),
    _Column("SCRIPT", lambda line: line.summary.script, leaves=6, shorten=shorten_middle),
    _Column("LOSS", lambda line: _or_empty(line.summary.loss, short), lambda line: line.summary.loss is not None),
    _Column("WHY", lambda line: line.summary.why, lambda line: line.summary.why, shorten=shorten),
    _Column("TAGS", lambda line: ",".join(line.labels.tags), lambda line: line.labels.tags, shorten=shorten),
    _Column("NOTE", lambda line: _note(line.labels), lambda line: line.labels.notes, shorten=shorten),
)


def _began(summary: RunSummary) -> datetime:
    return datetime.fromisoformat(summary.started)


def _note(own: Labels) -> str:
    line = first_line(own.notes[-1].text, 4 * NOTE_WIDTH) if own.notes else ""
    return line if len(line) <= NOTE_WIDTH else f"{line[: NOTE_WIDTH - 1]}…"


def _or_empty(number: Any, text: Callable[[Any], str]) -> str:
    return "" if number is None else text(number)


@app.command()
def ps(
    runs_dir: common.RunsDir = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"All runs, not the last {LAST} only; also those of other folders.")
    ] = False,
    state: common.States = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only runs with this tag.", metavar="NAME")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only runs started since then: 2h, 7d, or a time (ISO 8601).", metavar="TIME"),
    ] = None,
    size: Annotated[bool, typer.Option("--size", help="How much room each run takes on the disk.")] = False,
    as_json: common.Json = False,
) -> None:
    """List runs, past and present."""
    began = None if since is None else common.parse_since(since, time.time())
    states, tags = check_states(state), set(tag or ())
    filtered = bool(states or tags or since is not None)
    folder = Path(runs_dir or find.default_runs_dir(os.environ))
    last = None if everything or filtered else LAST
    summaries, older = list_summaries(folder, last)
    rows: list[NamedSummary] = [(run.name, run, summary) for run, summary in summaries]
    if everything:
        rows = [*_elsewhere(folder), *rows]
    lines = []
    for name, run, summary in rows:
        if isinstance(summary, RecordUnreadable):
            print(f"mslaunch: {summary}", file=sys.stderr)
        elif (not states or summary.state in states) and (began is None or _began(summary).timestamp() >= began):
            own = labels.read(run)
            if tags <= set(own.tags):
                lines.append(_Line(name, run, summary, own, measure(run.path) if size else None))
    if as_json:
        common.print_json(list(_as_json(lines)))
        return
    if lines:
        _print(lines)
    elif filtered:
        print("No run fits.", file=sys.stderr)
    elif not older:
        fix = "start one with `mslaunch train`, or name their folder with --runs-dir."
        print(f"No runs here yet: {fix}", file=sys.stderr)
    if older:
        print(f"... {counted(older, 'older run')}; --all shows {'it' if older == 1 else 'them'}", file=sys.stderr)
        summaries = []  # the sizes of older runs are not known
    for note in describe_use(folder, sum_sizes(summary for _, summary in summaries)):
        common.say_aside(note)


def check_states(states: list[str] | None) -> tuple[str, ...]:
    """Return the states that --state names; refuse what is none."""
    for state in states or ():
        if state not in STATES:
            near = did_you_mean(state, STATES) or f". There are {', '.join(STATES)}."
            raise RequestError(f"--state {state!r}: no run has that state{near}")
    return tuple(states or ())


def _as_json(lines: Iterable[_Line]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(RecordUnreadable):  # it was there a moment ago
            document = {"name": line.name, **current(line.folder).to_dict(), "labels": line.labels.to_dict()}
            if line.bytes is not None:
                document["bytes_now"] = line.bytes
            yield document


def _print(lines: list[_Line]) -> None:
    table = [column for column in COLUMNS if column.appears is None or any(map(column.appears, lines))]
    optional = sorted((column.leaves, column.heading) for column in table if column.leaves is not None)
    narrowing = Narrowing(
        dull={column.heading: column.dull for column in table if column.dull},
        optional=tuple(heading for _, heading in optional),
        texts={column.heading: column.shorten for column in table if column.shorten},
    )
    rows = [[column.text(line) for column in table] for line in lines]
    print(columns([[column.heading for column in table], *rows], narrowing), end="", flush=True)


def _elsewhere(runs_dir: Path) -> Iterator[NamedSummary]:
    """Yield the runs of other folders, each named by its path, by which every verb finds it."""
    here = runs_dir.resolve()
    for folder in find.remembered():
        if folder != here:
            with suppress(MslaunchError):  # a folder that cannot be read any more
                yield from ((str(run.path), run, summary) for run, summary in list_summaries(folder)[0])
