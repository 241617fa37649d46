"""The options of verbs that look at runs. Light: the settings of a launch, and what checks them, are not loaded."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.cli.parsing.common import say_aside
from mslaunch.errors import RequestError
from mslaunch.ranges import format_ranges, parse_ranges

if TYPE_CHECKING:
    from mslaunch.run.record import RunRecord
    from mslaunch.run.run import Run as RunOnDisk

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
