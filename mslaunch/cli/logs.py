"""`mslaunch logs`: show or follow the output of ranks."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.diagnose.patterns.pattern import is_healthy_noise
from mslaunch.errors import RequestError
from mslaunch.run.logs import LogLines, Selection, merge_logs
from mslaunch.shared.follow import Follower
from mslaunch.text import plain_output

if TYPE_CHECKING:
    from mslaunch.run.logs import TimedLog
    from mslaunch.run.run import Run

POLL = 0.1
AT_ONCE = 1 << 16  # characters that are printed together
SPARE = 64  # open files that are left to everything else
_NO_TIME = "-".ljust(len("2024-01-31 12:00:00.000"))

app = common.new_app()


@app.command()
def logs(
    name: common.Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[
        str | None, typer.Option("--rank", "-r", help="Ranks, for example 0,2-3, or all (the default).")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", help="Only lines that match this expression.", metavar="RE")
    ] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", "-l", help="Only the last N lines of each rank.", min=0, metavar="N")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only lines since then: 10m, 2h, 1d, or a time (ISO 8601).", metavar="TIME"),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-t", help="Show when each line came.")] = False,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", help="An earlier attempt; the first one is 1, as in `status`.", min=1, metavar="K"),
    ] = None,
    scheduler: Annotated[bool, typer.Option("--scheduler", help="The scheduler's output instead.")] = False,
    all_lines: Annotated[
        bool, typer.Option("--all", "-a", help="Also lines that MindSpore writes in every healthy run.")
    ] = False,
    runs_dir: common.RunsDir = None,
) -> None:
    """Show or follow the output of ranks, merged by time."""
    run = common.find_run(name, runs_dir)
    record = run.record
    ranks = (None,) if scheduler else common.parse_ranks("all" if rank is None else rank, "--rank", record)
    last = record.attempt_of() + 1
    if attempt is not None and attempt > last:
        raise RequestError(f"--attempt: {record.run_id} has no attempt {attempt}; the first is 1, the last {last}.")
    earlier = None if attempt in (None, last) else attempt - 1  # the files of the last attempt have no number
    sources = [run.timed_log(number, earlier) for number in ranks]
    matches = _pattern(grep).search if grep else None
    began = None if since is None else common.parse_since(since, time.time())
    hidden = None if all_lines or scheduler or matches else HiddenLines()
    selection = Selection(matches, hidden, began, lines, with_rest=not follow)
    show = Show(len(sources) > 1, timestamps)
    if follow:
        _make_room(len(sources))
    try:
        show.lines(merge_logs(sources, selection))
        if follow:
            _follow(run, sources, selection, show)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader has seen enough: `mslaunch logs | head`
        raise typer.Exit from None
    if hidden and hidden.count:
        common.say_aside("lines that MindSpore writes in every healthy run are hidden; --all shows them")


class HiddenLines:
    """Tells the lines that `train` does not show either, and how many there were."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: str) -> bool:
        is_hidden = is_healthy_noise(line)
        self.count += is_hidden
        return is_hidden


def _follow(run: Run, sources: list[TimedLog], selection: Selection, show: Show) -> None:
    matches, hides = selection.matches, selection.hides
    followers = [(source.rank, Follower(str(source.path), source.offset)) for source in sources]

    def new(rank: int | None, texts: list[str]) -> Iterator[LogLines]:
        matching = [text for text in texts if matches is None or matches(text)]
        yield LogLines(rank, time.time(), [text for text in matching if hides is None or not hides(text)])

    is_over = False
    while not is_over:
        is_over = run.has_ended
        for rank, follower in followers:
            while follower.behind():
                is_over = False
                show.lines(new(rank, follower.read()))
        if not is_over:
            time.sleep(POLL)
    for rank, follower in followers:
        show.lines(new(rank, follower.rest()))


def _make_room(logs: int) -> None:
    """Allow this process to hold so many logs open at once, or refuse."""
    limit = resource.RLIMIT_NOFILE
    _, most = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, most))
    if most != resource.RLIM_INFINITY and logs > most - SPARE:
        raise RequestError(
            f"{logs} logs cannot be followed at once: a process may open {most} files here (ulimit -Hn). "
            f"Name some of the ranks, for example --rank 0-{max(0, most - SPARE - 1)}."
        )


def _pattern(grep: str) -> re.Pattern[str]:
    try:
        return re.compile(grep)
    except re.error as error:
        raise RequestError(f"--grep {grep!r}: not a regular expression: {error}.") from None


class Show:
    """Prints lines, with a prefix where there is more than one source."""

    def __init__(self, prefixed: bool, timestamps: bool) -> None:
        self._prefixed = prefixed
        self._timestamps = timestamps
        self._shown: Callable[[str], str] = plain_output if sys.stdout.isatty() else str  # a file gets them as they are

    def lines(self, lines: Iterator[LogLines]) -> None:
        waiting: list[str] = []
        size = 0
        for some in lines:
            prefix = self._time(some.time) + (f"[rank {some.rank}] " if self._prefixed else "")
            waiting.append("".join([f"{prefix}{self._shown(text)}\n" for text in some.texts]))
            size += len(waiting[-1])
            if size > AT_ONCE:
                print("".join(waiting), end="", flush=True)
                waiting, size = [], 0
        print("".join(waiting), end="", flush=True)

    def _time(self, seconds: float | None) -> str:
        if not self._timestamps:
            return ""
        try:
            if seconds is None:
                return f"{_NO_TIME} "
            return f"{datetime.fromtimestamp(seconds).isoformat(' ', 'milliseconds')} "
        except (ValueError, OverflowError, OSError):  # of a file that somebody has changed
            return f"{_NO_TIME} "
