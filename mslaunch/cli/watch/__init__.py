"""`mslaunch watch`: a run on the whole screen, live: progress, loss, every rank, logs, notes, the verdict."""

from __future__ import annotations

import typer

from mslaunch.cli.parsing import common
from mslaunch.cli.watch.process import ViewProcess
from mslaunch.cli.watch.terminal import check_terminal

app = common.new_app()


@app.command()
def watch(name: common.Run = None, runs_dir: common.RunsDir = None) -> None:
    """Show a run live on the whole screen, also one that goes on elsewhere; ? lists the keys."""
    check_terminal("watch", "`mslaunch status` and `mslaunch attach` write plain lines.")
    run = common.find_run(name, runs_dir)
    view = ViewProcess(is_launchers=False)
    view.show(run.path)
    raise typer.Exit(view.wait())
