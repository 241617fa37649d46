"""`mslaunch agent`: lend this machine's devices to a launcher elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import describe_end
from mslaunch.cli.parsing import common, options
from mslaunch.launcher import runners

if TYPE_CHECKING:
    from mslaunch.transports.join.node import Member

app = common.new_app()

PAUSE = 1.0


@app.command()
def agent(
    join: Annotated[str, typer.Option("--join", help="Where the launcher is; the port is 29400.", metavar="HOST:PORT")],
    stay: Annotated[
        bool, typer.Option("--stay", help="Wait for the launcher for ever, and join it again after a run.")
    ] = False,
    node_rank: Annotated[int | None, options.option("node_rank")] = None,
    workers_per_node: Annotated[int | None, options.option("workers_per_node")] = None,
    secret_file: Annotated[str | None, options.option("secret_file")] = None,
    join_timeout: Annotated[float | None, options.option("join_timeout")] = None,
    runs_dir: common.RunsDir = None,
) -> None:
    """Lend this machine's devices to a launcher elsewhere, and exit as the run does."""
    member = runners.agent_member(
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


def follow(member: Member, as_json: bool = False, for_ever: bool = False) -> int:
    """Take part in one run; return the exit code that the launcher has as well."""
    for note in member.part.notes:
        common.say(note)
    began = time.monotonic()
    code, record, text = runners.join(member, common.say, None if for_ever else member.part.timeout)
    for line in text.splitlines():
        common.say(line)
    if record is not None:
        common.say(describe_end(record, time.monotonic() - began))
        if verdict := verdict_text(record, False):
            common.say(f"the paths below are those of the launcher at {member.part.place}")
            print(verdict, end="", flush=True)
        if as_json:
            common.print_json(record.to_dict())
    return code
