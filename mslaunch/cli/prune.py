"""`mslaunch prune`: remove old runs, or their checkpoints, and say what that frees."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.cli.ps import check_states
from mslaunch.run import prune as pruning
from mslaunch.run.disk_usage import describe_use
from mslaunch.run.find import default_runs_dir
from mslaunch.run.prune import Criteria
from mslaunch.run.summaries import list_summaries, sum_sizes
from mslaunch.text import byte_count, counted, plain

app = common.new_app()


@app.command()
def prune(
    keep: Annotated[
        int | None, typer.Option("--keep", help="Keep the newest N runs of the folder.", min=0, metavar="N")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Only runs that ended before then: 12h, 30d, or a time.", metavar="TIME"),
    ] = None,
    state: common.States = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only runs with this tag; without it, runs with tags stay.", metavar="NAME"),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            help="Remove checkpoints only, and keep the runs: all but the best, or all.",
            metavar="keep-best|drop",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Remove old runs, or their checkpoints, and say what that frees. A run must fit all that is given.

    Never a run that is alive, has the tag keep, is another user's, or that another run refers to.
    """
    before = None if older_than is None else common.parse_age(older_than, time.time(), "--older-than")
    folder = Path(runs_dir or default_runs_dir(os.environ))
    criteria = Criteria(keep, before, check_states(state), tuple(tag or ()))
    pruned = pruning.prune_chosen(folder, criteria, checkpoints, dry_run)
    if as_json:
        common.print_json({"dry_run": dry_run, **pruned.to_dict()})
        return
    _print(pruned, checkpoints is not None, dry_run)
    summaries, _ = list_summaries(folder)
    for note in describe_use(folder, sum_sizes(summary for _, summary in summaries)):
        common.say_aside(note)


def _print(pruned: pruning.Pruned, only_checkpoints: bool, dry_run: bool) -> None:
    for freed in pruned.removed:
        files = f", {counted(len(freed.files), 'checkpoint file')}" if only_checkpoints else ""
        print(plain(f"{freed.name}{files}: {byte_count(freed.bytes)}"))
    for name, why in pruned.kept.items():
        print(plain(f"{name} stays: {why}"))
    number = counted(len(pruned.removed), "run")
    if only_checkpoints:
        number = f"checkpoints of {number}"
    if not pruned.removed:
        print("Nothing is to be removed.")
    elif dry_run:
        print(f"Would remove {number} and free {byte_count(pruned.bytes)}.")
    else:
        print(f"Removed {number}; {byte_count(pruned.bytes)} are free again.")
