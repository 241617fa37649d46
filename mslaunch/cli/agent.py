"""`mslaunch agent`: lend this machine's devices to a launcher elsewhere."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mslaunch.cli.console.joined_node import follow
from mslaunch.cli.parsing import common, options
from mslaunch.launcher.membership import agent_member

app = common.new_app()

PAUSE = 1.0

Join = Annotated[str, typer.Option("--join", help="Where the launcher is; the port is 29400.", metavar="HOST:PORT")]
Stay = Annotated[bool, typer.Option("--stay", help="Wait for the launcher for ever, and join it again after a run.")]
NodeRank = Annotated[int | None, options.option("node_rank")]
WorkersPerNode = Annotated[int | None, options.option("workers_per_node")]
SecretFile = Annotated[str | None, options.option("secret_file")]
JoinTimeout = Annotated[float | None, options.option("join_timeout")]


@app.command()
def agent(
    join: Join,
    stay: Stay = False,
    node_rank: NodeRank = None,
    workers_per_node: WorkersPerNode = None,
    secret_file: SecretFile = None,
    join_timeout: JoinTimeout = None,
    runs_dir: options.RunsDir = None,
) -> None:
    """Lend this machine's devices to a launcher elsewhere, and exit as the run does."""
    member = agent_member(
        common.say,
        master=join,
        node_rank=node_rank,
        workers_per_node=workers_per_node,
        secret_file=secret_file,
        join_timeout=join_timeout,
        runs_dir=runs_dir,
    )
    code = follow(member, for_ever=stay)
    while stay and code < 128:
        time.sleep(PAUSE)  # the launcher that has just ended is not the one to join
        code = follow(member, for_ever=True)
    raise typer.Exit(code)
