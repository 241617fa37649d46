"""What verbs share: a plain app, options of verbs that look at runs, new files, and lines for people. Light to load."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.errors import RequestError
from mslaunch.ranges import format_ranges, parse_ranges
from mslaunch.text import plain

if TYPE_CHECKING:
    from mslaunch.run.record import RunRecord
    from mslaunch.run.run import Run as RunOnDisk

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file, where it exists.")]
RunsDir = Annotated[
    str | None,
    typer.Option("--runs-dir", "--log_dir", help="Folder that holds the runs.", show_default=False, metavar="DIR"),
]
Run = Annotated[
    str | None,
    typer.Argument(help="The run, a part of its name, its folder, or latest; by default your newest.", metavar="RUN"),
]
OneRun = Annotated[str, typer.Argument(help="The run, a part of its name, its folder, or latest.", metavar="RUN")]
AsOwner = Annotated[
    bool, typer.Option("--as-owner", help="Root only: act on another user's run, with that user's rights.")
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help="Only runs that are queued, running, succeeded, failed, stopped or lost.", metavar="STATE"
    ),
]
_SPAN = re.compile(r"(\d{1,9})(min|[smhdw])")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_BRIEF_MINUTES = re.compile(r"(\d{1,9})m")


def new_app() -> typer.Typer:
    """Return a typer app with plain help: rich's costs 100 ms."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=names
    )


def print_json(document: object) -> None:
    print(json.dumps(document, indent=1))


def say(text: str) -> None:
    """Print a line for people at once."""
    print(f"mslaunch: {plain(text)}", flush=True)


def say_aside(text: str) -> None:
    """Print a line for people to standard error, where standard output is for a program."""
    print(f"mslaunch: {plain(text)}", file=sys.stderr, flush=True)


def check_new(name: str, force: bool) -> None:
    """Refuse a file that is there; pipes and what is below /dev, such as /dev/stdout, are written to."""
    path = Path(name)
    is_there = path.is_file() or (path.is_symlink() and not path.exists())
    if is_there and not force and Path("/dev") not in path.parents:
        raise RequestError(f"{name}: exists already. Name another file, or give --force to overwrite it.")


def write_new(name: str, content: str | bytes, force: bool) -> None:
    """Write a file that is not there yet."""
    check_new(name, force)
    data = content.encode() if isinstance(content, str) else content
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise RequestError(f"{name}: cannot be written: {error.strerror}. Give another -o.") from None


def parse_since(text: str, now: float, option: str = "--since") -> float:
    """Read `10m`, or a time as in `2024-01-31 12:00`: local, unless it names its offset."""
    if span := _SPAN.fullmatch(text):
        return now - int(span[1]) * _SECONDS[span[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise RequestError(f"{option} {text!r}: write 10min, 2h, 1d, or a time such as 2024-01-31T12:00.") from None


def parse_age(text: str, now: float, option: str) -> float:
    """Read a time as `parse_since` does, for what is deleted: 1m may mean a month there, and is refused."""
    if span := _BRIEF_MINUTES.fullmatch(text):
        number = int(span[1])
        raise RequestError(f"{option} {text}: minutes or months? Write {number}min, or {30 * number}d.")
    return parse_since(text, now, option)


def parse_ranks(text: str, option: str, record: RunRecord) -> tuple[int, ...]:
    """Read ranks of a run: `all`, or ranges such as 0,2-3; refuse a rank that the run does not have."""
    world = record.world_size
    if text == "all":
        return tuple(range(world))
    ranks = parse_ranges(text, option)
    if beyond := [rank for rank in ranks if rank >= world]:
        raise RequestError(
            f"{option}: rank {format_ranges(beyond)} is not in {record.run_id}, which has {world} ranks."
        )
    return ranks


def find_run(name: str | None, runs_dir: str | None, as_owner: bool = False) -> RunOnDisk:
    """Find a run, and print its folder of runs where the user could not know it; with `as_owner`, become its owner."""
    from mslaunch.run import find

    run = find.find_run(name, runs_dir)
    _name_place(run, name, runs_dir)
    if as_owner:
        from mslaunch.launcher import collect  # noqa: F401 -- now: what is loaded later may be closed to that user
        from mslaunch.run.ownership import become_owner

        become_owner(run.folder)
    return run


def find_runs(name: str, runs_dir: str | None) -> list[RunOnDisk]:
    """Find the runs of a sweep, or a run, likewise."""
    from mslaunch.run import find

    runs = find.find_runs(name, runs_dir)
    for run in runs[:1]:
        _name_place(run, name, runs_dir)
    return runs


def _name_place(run: RunOnDisk, name: str | None, runs_dir: str | None) -> None:
    from mslaunch.run import find

    if runs_dir is None and (place := find.unexpected_place(run, name)):
        say_aside(f"{run.name} is in {place}")
