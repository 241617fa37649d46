"""`mslaunch ps`: runs, past and present."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from mslaunch import api
from mslaunch.cli.console.tables import Narrowing
from mslaunch.cli.parsing import common, run_options
from mslaunch.cli.parsing.common import columns, lasting
from mslaunch.cli.parsing.run_options import parse_since
from mslaunch.errors import MslaunchError, RecordUnreadable, RequestError, did_you_mean
from mslaunch.metrics.progress import short
from mslaunch.text import byte_count, counted, first_line, shorten, shorten_middle

app = common.new_app()


SHOWN = 20
STATES = ("queued", "running", "succeeded", "failed", "stopped", "lost")
NOTE_SHOWN = 40
COLUMNS = (
    *("RUN", "STATE", "CODE", "ATTEMPTS", "RANKS", "METHOD", "STARTED", "TIME", "SIZE", "SCRIPT"),
    *("LOSS", "WHY", "TAGS", "NOTE"),
)
NARROWING = Narrowing(
    dull={"METHOD": "dynamic"},
    optional=("METHOD", "CODE", "ATTEMPTS", "STARTED", "RANKS", "SCRIPT"),
    texts={"SCRIPT": shorten_middle, "WHY": shorten, "TAGS": shorten, "NOTE": shorten},
)


@dataclass(frozen=True)
class _Line:
    """A run that is listed."""

    name: str
    run: api.Run
    summary: api.RunSummary
    labels: api.Labels


@dataclass(frozen=True)
class _Filter:
    """Which runs are asked for."""

    tags: tuple[str, ...]
    states: tuple[str, ...]
    since: float | None

    def __bool__(self) -> bool:
        return bool(self.tags or self.states or self.since is not None)

    def fits(self, summary: api.RunSummary) -> bool:
        if self.states and summary.state not in self.states:
            return False
        return self.since is None or datetime.fromisoformat(summary.started).timestamp() >= self.since

    def fits_labels(self, labels: api.Labels) -> bool:
        return all(tag in labels.tags for tag in self.tags)


@app.command()
def ps(
    runs_dir: run_options.RunsDir = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help=f"All runs, not the last {SHOWN} only; also those of other folders.")
    ] = False,
    state: run_options.States = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only runs with this tag.", metavar="NAME")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only runs started since then: 2h, 7d, or a time (ISO 8601).", metavar="TIME"),
    ] = None,
    size: Annotated[bool, typer.Option("--size", help="How much room each run takes on the disk.")] = False,
    as_json: common.Json = False,
) -> None:
    """List runs, past and present."""
    began = None if since is None else parse_since(since, time.time())
    wanted = _Filter(tuple(tag or ()), check_states(state), began)
    folder = runs_dir or api.default_runs_dir()
    found, hidden = api.list_summaries(folder, None if everything or wanted else SHOWN)
    named = [*(_elsewhere(folder) if everything else ()), *((run.name, run, one) for run, one in found)]
    lines = list(_lines(named, wanted))
    if as_json:
        print(json.dumps(list(_as_json(lines, size)), indent=1))
        return
    if not lines and not hidden:
        fix = "start one with `mslaunch train`, or name their folder with --runs-dir."
        print("No run fits." if wanted else f"No runs here yet: {fix}", file=sys.stderr)
    if lines:
        _print(lines, size)
    if hidden:
        print(f"... {counted(hidden, 'older run')}; --all shows {'it' if hidden == 1 else 'them'}", file=sys.stderr)
    total = 0 if hidden else sum(one.bytes or 0 for _, one in found if not isinstance(one, RecordUnreadable))
    for words in api.words_of_room(folder, total):
        print(f"mslaunch: {words}", file=sys.stderr)


def check_states(states: list[str] | None) -> tuple[str, ...]:
    """Return the states that were asked for; refuse what is none."""
    for state in states or ():
        if state not in STATES:
            near = did_you_mean(state, STATES) or f". There are {', '.join(STATES)}."
            raise RequestError(f"--state {state!r}: no run has that state{near}")
    return tuple(states or ())


def _lines(found: Iterable[tuple[str, api.Run, api.RunSummary | RecordUnreadable]], wanted: _Filter) -> Iterator[_Line]:
    for name, run, summary in found:
        if isinstance(summary, RecordUnreadable):
            print(f"mslaunch: {summary}", file=sys.stderr)
        elif wanted.fits(summary):
            labels = api.labels_of(run)
            if wanted.fits_labels(labels):
                yield _Line(name, run, summary, labels)


def _as_json(lines: list[_Line], size: bool) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(RecordUnreadable):  # it was there a moment ago
            now = {"bytes_now": api.measure_run(line.run)} if size else {}
            yield {"name": line.name, **line.run.record.to_dict(), "labels": line.labels.to_dict(), **now}


def _print(lines: list[_Line], size: bool) -> None:
    """Print a table; columns that no run has anything for are left out."""
    shown = {
        "ATTEMPTS": any(line.summary.attempts for line in lines),
        "SIZE": size,
        "TAGS": any(line.labels.tags for line in lines),
        "NOTE": any(line.labels.notes for line in lines),
        "LOSS": any(line.summary.loss is not None for line in lines),
        "WHY": any(line.summary.why for line in lines),
    }
    rows = [_row(line, size) for line in lines]
    names = [name for name in COLUMNS if shown.get(name, True)]
    print(columns([names, *([row[name] for name in names] for row in rows)], NARROWING), end="", flush=True)


def _row(line: _Line, size: bool) -> dict[str, str]:
    one = line.summary
    started = f"{datetime.fromisoformat(one.started).astimezone():%m-%d %H:%M:%S}"  # local, wherever it was launched
    notes = line.labels.notes
    return {
        "RUN": line.name,
        "STATE": one.state,
        "CODE": "" if one.exit_code is None else str(one.exit_code),
        "ATTEMPTS": str(one.attempts + 1),
        "RANKS": str(one.world_size),
        "METHOD": one.method,
        "STARTED": started,
        "TIME": lasting(one.seconds),
        "SIZE": byte_count(api.measure_run(line.run)) if size else "",
        "SCRIPT": one.script,
        "LOSS": "" if one.loss is None else short(one.loss),
        "WHY": one.why,
        "TAGS": ",".join(line.labels.tags),
        "NOTE": _shortened(notes[-1].text) if notes else "",
    }


def _shortened(text: str) -> str:
    line = first_line(text, 4 * NOTE_SHOWN)
    return line if len(line) <= NOTE_SHOWN else f"{line[: NOTE_SHOWN - 1]}…"


def _elsewhere(runs_dir: str) -> Iterator[tuple[str, api.Run, api.RunSummary | RecordUnreadable]]:
    """The runs of other folders, each called by its path, by which every verb finds it."""
    here = Path(runs_dir).resolve()
    for folder in api.known_folders():
        if Path(folder) != here:
            with suppress(MslaunchError):  # a folder that cannot be read any more
                yield from ((str(run.path), run, one) for run, one in api.list_summaries(folder)[0])
