"""`mslaunch train`: plan a job, start it, follow it to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch import api
from mslaunch.cli.console.console import Console
from mslaunch.cli.console.describe import describe_plan
from mslaunch.cli.console.screen import Screen
from mslaunch.cli.parsing import arguments, common, msrun_options, options
from mslaunch.errors import RequestError

if TYPE_CHECKING:
    from mslaunch.cli.console.detached import Detached
    from mslaunch.cli.watch.process import ViewProcess

NOTES_SHOWN = 10  # of those that came while the view had the screen

_app = common.new_app()
app = partial(arguments.call, _app)

_NAMING_RANKS = {"--workers", "--worker_num", "--local_worker_num", "-n", "--devices", "--hosts", "--config", "-c"}
"""What says how many ranks there are; a default of another launcher does not count beside it."""


def call_with_defaults(args: list[str], table: msrun_options.Table, default_ranks: str, **how: object) -> object:
    """Call the verb with the options of another launcher, and its default number of ranks."""
    options_typed = {word.partition("=")[0].replace("nproc-per", "nproc_per") for word in args}
    named = _NAMING_RANKS | {"--nproc_per_node"}
    default = [] if options_typed & named else [default_ranks]
    return arguments.call(_app, [*default, *args], table, ours_first=False, **how)


Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on by itself.")]
View = Annotated[bool, typer.Option("--view", help="Show the job live on the whole screen, as watch does.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and where each setting came from.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="With --dry-run: show the defaults too.")]


@_app.command(epilog=arguments.EPILOG, options_metavar=arguments.USAGE)
@options.launching
def train(
    typed: dict[str, Any],
    context: typer.Context,
    detach: Detach = False,
    view: View = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: common.Json = False,
) -> None:
    """Start a distributed job and follow it to its end."""
    request = options.request(
        typed["config"],
        tuple(typed["assignments"] or ()),
        options.settings(typed),
        context.obj,
        bool(typed["is_module"]),
        offers_stdin=not (detach or view),
    )
    launch(request, detach, dry_run, as_json, verbose=verbose, view=view)


def launch(
    request: api.Request,
    detach: bool,
    dry_run: bool,
    as_json: bool,
    fill: Callable[[Path], None] | None = None,
    verbose: bool = False,
    view: bool = False,
) -> None:
    """Show a plan, or carry it out here or detached; `fill` puts into the run's folder what the plan counts on."""
    if dry_run:
        plan = api.plan_request(request)
        print(api.plan_json(plan) if as_json else describe_plan(plan, verbose), end="")
        return
    viewing = _start_view(detach, as_json) if view else None
    detached = _detach() if detach else None
    if detached and detached.waits:
        raise typer.Exit(detached.wait(as_json))
    job = api.read(request)
    if (member := api.membership(job, common.say)) is not None:
        from mslaunch.cli.console.joined_node import follow as follow_launcher

        if detached:
            raise RequestError("--detach: another node launches this job, and this one only joins it. Leave it out.")
        raise typer.Exit(follow_launcher(member, as_json))
    prepared = api.prepare(request, job, common.say_aside if as_json else common.say)
    if prepared.queue is not None:
        from mslaunch.cli.submit import submit

        raise typer.Exit(submit(prepared, prepared.queue, detach, as_json, viewing))
    run = api.make_run(prepared, fill)
    if detached:
        detached.leave(run.path, run.folder.launcher_log)
    with api.recorded(run):
        code = _follow_behind(prepared, run, viewing) if viewing else follow(prepared, run, as_json and not detached)
    raise typer.Exit(code)


def _detach() -> Detached:
    from mslaunch.cli.console.detached import Detached

    return Detached()


def _start_view(detach: bool, as_json: bool) -> ViewProcess:
    from mslaunch.cli.watch.view_console import start_view

    return start_view(detach=detach, json=as_json)


def _follow_behind(prepared: api.Prepared, run: api.Run, view: ViewProcess) -> int:
    """Run the job here, shown by the view; then say how it ended on the screen that was there before."""
    from mslaunch.cli.watch.view_console import ScreenBehindView

    screen = ScreenBehindView(view)
    console = Console(prepared.plan, screen)
    try:
        view.show(run.path)
        final = api.carry_out(prepared, run, console.observe)
    finally:
        was_covered = screen.uncover()
    if was_covered:
        console.open()
        console.say(list(final.notes[-NOTES_SHOWN:]))
    console.close(final)
    return final.exit_code if final.exit_code is not None else 1


def follow(prepared: api.Prepared, run: api.Run, as_json: bool) -> int:
    """Run the job here and show what happens."""
    console = Console(prepared.plan, Screen(2 if as_json else 1))
    console.open()
    final = api.carry_out(prepared, run, console.observe)
    console.close(final)
    if as_json:
        print(json.dumps(final.to_dict(), indent=1))
    return final.exit_code if final.exit_code is not None else 1
