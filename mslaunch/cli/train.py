"""`mslaunch train`: plan a job, start it, follow it to its end."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.cli import basics, job, options
from mslaunch.cli.console import Console
from mslaunch.cli.describe import describe_plan
from mslaunch.cli.screen import Screen
from mslaunch.launch import record
from mslaunch.launch.cluster import this_machine
from mslaunch.launch.launcher import execute
from mslaunch.launch.run_folder import RunFolder, create
from mslaunch.plan.model import to_json

if TYPE_CHECKING:
    from mslaunch.cli.detached import Detached

_app = basics.new_app()
app = partial(job.call, _app)

Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on by itself.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and where each setting came from.")]


@_app.command(epilog="Arguments for the script stand after --.")
@options.launching
def train(
    typed: dict[str, Any],
    context: typer.Context,
    detach: Detach = False,
    dry_run: DryRun = False,
    as_json: basics.Json = False,
) -> None:
    """Start a distributed job and follow it to its end."""
    request = job.Request(typed["config"], tuple(typed["assignments"] or ()), options.settings(typed), context.obj)
    launch(request, detach, dry_run, as_json)


def launch(
    request: job.Request,
    detach: bool,
    dry_run: bool,
    as_json: bool,
    prepare: Callable[[RunFolder], None] = lambda _: None,
) -> None:
    """Show a plan, or carry it out here or detached; `prepare` puts into the run's folder what the plan counts on."""
    if dry_run:
        plan = job.plan_job(request)
        print(to_json(plan) if as_json else describe_plan(plan), end="")
        return
    detached = _detach() if detach else None
    if detached and detached.waits:
        raise typer.Exit(detached.wait(as_json))
    prepared = job.prepare_job(request)
    plan = prepared.plan
    if prepared.submits:
        from mslaunch.cli.submit import submit

        raise typer.Exit(submit(plan, detach, as_json))
    folder = prepared.adopted.take(plan) if prepared.adopted else create(plan)
    try:
        prepare(folder)
    except BaseException:
        if not prepared.adopted:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    record.save(folder, record.queued(plan, time.time()))
    if detached:
        detached.leave(folder)
    raise typer.Exit(follow(prepared, folder, as_json and not detached))


def _detach() -> Detached:
    from mslaunch.cli.detached import Detached

    return Detached()


def follow(prepared: job.Prepared, folder: RunFolder, as_json: bool) -> int:
    """Run the job here and show what happens."""
    plan = prepared.plan
    cluster = prepared.cluster or this_machine()
    console = Console(plan, Screen(2 if as_json else 1))
    console.open()
    attempts = prepared.adopted.attempts if prepared.adopted else ()
    final = execute(plan, folder, console.observe, os.environ, cluster, prepared.replan, attempts)
    console.close(final)
    if as_json:
        print(json.dumps(final.to_dict(), indent=1))
    return final.exit_code if final.exit_code is not None else 1
