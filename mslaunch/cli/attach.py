"""`mslaunch attach`: a run that goes on elsewhere, shown as if it had been started here."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Annotated

import typer

from mslaunch.cli.console.console import Console, Screen
from mslaunch.cli.parsing import common
from mslaunch.errors import ExitCode
from mslaunch.launcher.attach import AttachedRun
from mslaunch.launcher.attempt.notices import Notice, SignalNotice, Tick
from mslaunch.run.find import arguments_for
from mslaunch.run.run import Run

POLL = 0.1

app = common.new_app()


@app.command()
def attach(
    name: common.Run = None,
    tail: Annotated[
        str | None,
        typer.Option("--tail", help="Ranks whose output is shown; by default as the run was started.", metavar="RANKS"),
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-l", help="How many earlier lines are shown first.", min=0)] = 10,
    runs_dir: common.RunsDir = None,
) -> None:
    """Show a run that goes on elsewhere until it ends; Ctrl-C leaves it, and it goes on."""
    run = common.find_run(name, runs_dir)
    screen = Screen(1)
    ranks = None
    if tail is not None:
        ranks = () if tail == "none" else common.parse_ranks(tail, "--tail", run.record)
    try:
        code = _follow(run, ranks, lines, screen)
    except KeyboardInterrupt:
        stop = f"`mslaunch stop {arguments_for(run.folder, os.environ)}`"
        screen.write(f"\nmslaunch: left {run.name}, which goes on; {stop} stops it\n")
        screen.close()
        code = ExitCode.INTERRUPTED
    raise typer.Exit(code)


def _follow(run: Run, tail: tuple[int, ...] | None, lines: int, screen: Screen) -> int:
    if run.state == "queued":  # its plan names no hosts yet
        job = f" ({run.queue_job})" if run.queue_job else ""
        screen.write(f"mslaunch: {run.name} is queued{job}\n")
    while run.state == "queued":
        time.sleep(POLL)
    attached = AttachedRun(run, tail)
    console = Console(attached.plan, screen, run.record.seconds_taken(datetime.now().astimezone()))
    console.open()
    for notice in attached.catch_up(lines):
        _show(console, attached, notice)
    while True:
        ended = run.has_ended  # before reading: what was written until then is read below
        for notice in attached.rest() if ended else attached.read():
            _show(console, attached, notice)
        if ended:
            break
        _show(console, attached, Tick(time.time()))
        time.sleep(POLL)
    final = run.record
    console.close(final)
    return final.exit_code if final.exit_code is not None else 1


def _show(console: Console, attached: AttachedRun, notice: Notice) -> None:
    if isinstance(notice, SignalNotice) and attached.run_state.ending.interrupt is not None:
        console.say(["stopping all ranks"])  # Ctrl-C means something else here
    else:
        console.observe(notice, attached.run_state, lambda: None)
