"""`mslaunch train`: plan a job, start it, follow it to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.cli.console.console import Console
from mslaunch.cli.console.describe import describe_plan
from mslaunch.cli.console.screen import Screen
from mslaunch.cli.parsing import arguments, common, msrun_options, options
from mslaunch.errors import RequestError
from mslaunch.launcher import pipeline
from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.launcher.read import Request
from mslaunch.launcher.runners import run_here
from mslaunch.plan.model import to_json
from mslaunch.transports.base import JobQueue

if TYPE_CHECKING:
    from mslaunch.checkpoint.moving.shard_writer import Progress
    from mslaunch.cli.console.detached import Detached
    from mslaunch.cli.watch.process import ViewProcess
    from mslaunch.transports.join.find_launcher import Member

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


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A job to launch, as it was typed. The verb returns it, and the command line carries it out."""

    request: Request
    detach: bool
    dry_run: bool
    as_json: bool
    verbose: bool
    view: bool

    def carry_out(self) -> int:
        """Show the plan of the job, or launch it here or detached; return the exit code."""
        if self.dry_run:
            plan = pipeline.plan_only(self.request)
            print(to_json(plan) if self.as_json else describe_plan(plan, self.verbose), end="")
            return 0
        viewing = _start_view(self.detach, self.as_json) if self.view else None
        detached = _detach() if self.detach else None
        if detached and detached.waits:
            return detached.wait(self.as_json)
        code: int = pipeline.launch(self.request, _Foreground(self.as_json, detached, viewing))
        return code


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
) -> LaunchCommand:
    """Start a distributed job and follow it to its end."""
    request = options.request(
        typed["config"],
        tuple(typed["assignments"] or ()),
        options.settings(typed),
        context.obj,
        bool(typed["is_module"]),
        offers_stdin=not (detach or view),
    )
    return LaunchCommand(request, detach, dry_run, as_json, verbose, view)


def _detach() -> Detached:
    from mslaunch.cli.console.detached import Detached

    return Detached()


def _start_view(detach: bool, as_json: bool) -> ViewProcess:
    from mslaunch.cli.watch.view_console import start_view

    return start_view(detach=detach, json=as_json)


class _Foreground:
    """Runs a job in this process and shows what happens; each way returns the exit code."""

    joins = True

    def __init__(self, as_json: bool, detached: Detached | None, view: ViewProcess | None) -> None:
        self.as_json = as_json
        self.detached = detached
        self.view = view

    def say(self, text: str) -> None:
        if self.as_json:
            common.say_aside(text)
        else:
            common.say(text)

    def take_part(self, member: Member) -> int:
        from mslaunch.cli.console.joined_node import follow

        if self.detached:
            raise RequestError("--detach: another node launches this job, and this one only joins it. Leave it out.")
        return follow(member, self.as_json)

    def submit(self, planned: PlannedJob, queue: JobQueue) -> int:
        from mslaunch.cli.submit import submit

        return submit(planned, queue, self.detached is not None, self.as_json, self.view)

    def starts(self, _planned: PlannedJob) -> bool:
        return True

    def moving(self) -> AbstractContextManager[Callable[[int], Progress]]:
        from mslaunch.cli.console.progress_bar import progress_bar

        return progress_bar()

    def run(self, launch: Launch) -> int:
        if self.detached:
            self.detached.leave(launch.folder.path, launch.folder.launcher_log)
        if self.view:
            return _run_behind(launch, self.view)
        return _run_shown(launch, self.as_json and not self.detached)


def _run_behind(launch: Launch, view: ViewProcess) -> int:
    """Run the job here, shown by the view; then say how it ended on the screen that was there before."""
    from mslaunch.cli.watch.view_console import ScreenBehindView

    screen = ScreenBehindView(view)
    console = Console(launch.plan, screen)
    try:
        view.show(launch.folder.path)
        final = run_here(launch, console.observe)
    finally:
        was_covered = screen.uncover()
    if was_covered:
        console.open()
        console.say(list(final.notes[-NOTES_SHOWN:]))
    console.close(final)
    return final.exit_code if final.exit_code is not None else 1


def _run_shown(launch: Launch, as_json: bool) -> int:
    """Run the job here and show what happens."""
    console = Console(launch.plan, Screen(2 if as_json else 1))
    console.open()
    final = run_here(launch, console.observe)
    console.close(final)
    if as_json:
        print(json.dumps(final.to_dict(), indent=1))
    return final.exit_code if final.exit_code is not None else 1
