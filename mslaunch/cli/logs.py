"""`mslaunch logs`: show or follow the output of ranks."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch import api
from mslaunch.cli import basics, options
from mslaunch.errors import RequestError
from mslaunch.ranges import format_ranges, parse_ranges
from mslaunch.words import plain_output

if TYPE_CHECKING:
    from mslaunch.api import Follower, Run

POLL = 0.1

app = basics.new_app()


@app.command()
def logs(
    run: options.Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[str | None, typer.Option("--rank", "-r", help="Ranks, for example 0,2-3; by default all.")] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Only lines that match this expression.", metavar="RE")
    ] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-l", help="Only the last N lines of each rank.", min=0)
    ] = None,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="The scheduler's output instead.")] = False,
    runs_dir: options.RunsDir = None,
) -> None:
    """Show or follow the output of ranks."""
    found = api.find_run(run, runs_dir)
    followers = _followers(found, rank, scheduler)
    show = Show(grep, len(followers) > 1)
    for name, follower in followers.items():
        kept: deque[str] = deque(maxlen=lines)
        while follower.behind():
            kept.extend(show.matching(follower.read()))
            if lines is None:
                show.lines(name, list(kept))
                kept.clear()
        if not follow:
            kept.extend(show.matching(follower.rest()))
        show.lines(name, list(kept))
    try:
        while follow:
            ended = found.has_ended
            if not _more(followers, show) and ended:
                break
            time.sleep(POLL)
    except KeyboardInterrupt:
        return
    for name, follower in followers.items():
        show.lines(name, show.matching(follower.rest()))


def _more(followers: dict[str, Follower], show: Show) -> bool:
    more = False
    for name, follower in followers.items():
        if follower.behind():
            show.lines(name, show.matching(follower.read()))
            more = True
    return more


def _followers(run: Run, ranks: str | None, scheduler: bool) -> dict[str, Follower]:
    if scheduler:
        return {"scheduler": run.follow_log(None)}
    world = run.record.world_size
    wanted = range(world) if ranks is None else parse_ranges(ranks, "--rank")
    beyond = [rank for rank in wanted if rank >= world]
    if beyond:
        raise RequestError(f"--rank: rank {format_ranges(beyond)} is not in {run.run_id}, which has {world} ranks.")
    return {f"rank {rank}": run.follow_log(rank) for rank in wanted}


class Show:
    """Prints lines, with a prefix where there is more than one source."""

    def __init__(self, grep: str | None, prefixed: bool) -> None:
        try:
            self._pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise RequestError(f"--grep {grep!r}: not a regular expression: {error}.") from None
        self._prefixed = prefixed
        self._shown = plain_output if sys.stdout.isatty() else str  # a file gets the lines as they are

    def matching(self, lines: list[str]) -> list[str]:
        return [line for line in lines if self._pattern.search(line)] if self._pattern else lines

    def lines(self, name: str, lines: list[str]) -> None:
        prefix = f"[{name}] " if self._prefixed else ""
        if lines:
            try:
                print("".join(f"{prefix}{self._shown(line)}\n" for line in lines), end="", flush=True)
            except BrokenPipeError:  # the reader has seen enough: `mslaunch logs | head`
                raise typer.Exit from None
