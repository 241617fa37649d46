"""`mslaunch train`: plan a job, start it, follow it to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mslaunch.cli.console.console import Console, Screen
from mslaunch.cli.console.describe import describe_plan
from mslaunch.cli.parsing import common, msrun_options, options
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
    from mslaunch.transports.join.node import Member

NOTES_SHOWN = 10  # of those that came while the view had the screen

_app = common.new_app()
app = partial(options.call, _app)

_NAMING_RANKS = {
    *("--workers", "--worker_num", "--local_worker_num", "--nproc_per_node", "-n"),
    *("--devices", "--hosts", "--config", "-c"),
}
"""What says how many ranks there are; a default of another launcher does not count beside it."""


def call_with_defaults(table: msrun_options.Table, default_ranks: str, args: list[str], prog_name: str) -> object:
    """Call the verb with the options of another launcher, and its default number of ranks."""
    options_typed = {word.partition("=")[0].replace("nproc-per", "nproc_per") for word in args}
    default = [] if options_typed & _NAMING_RANKS else [default_ranks]
    return options.call(_app, [*default, *args], prog_name, table, ours_first=False)


Detach = Annotated[bool, typer.Option("--detach", help="Return at once; the job goes on by itself.")]
View = Annotated[bool, typer.Option("--view", help="Show the job live on the whole screen, as watch does.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and where each setting came from.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="With --dry-run: show the defaults too.")]


@dataclass(slots=True)
class LaunchCommand:
    """A job to launch, as it was typed: the verb returns it, and the command line has it carried out."""

    request: Request
    detach: bool
    dry_run: bool
    as_json: bool
    verbose: bool
    view: bool
    detached: Detached | None = None
    viewing: ViewProcess | None = None

    def carry_out(self) -> int:
        """Show the plan of the job, or launch it here or detached; return the exit code."""
        if self.dry_run:
            plan = pipeline.plan_only(self.request)
            print(to_json(plan) if self.as_json else describe_plan(plan, self.verbose), end="")
            return 0
        if self.view:
            from mslaunch.cli.watch.process import start_view

            self.viewing = start_view(detach=self.detach, json=self.as_json)
        if self.detach:
            from mslaunch.cli.console.detached import Detached

            self.detached = Detached()
            if self.detached.waits:
                return self.detached.wait(self.as_json)
        code: int = pipeline.launch(self.request, self)
        return code

    def say(self, text: str) -> None:
        if self.as_json:
            common.say_aside(text)
        else:
            common.say(text)

    def take_part(self, member: Member) -> int:
        from mslaunch.cli.agent import follow

        if self.detached:
            raise RequestError("--detach: another node launches this job, and this one only joins it. Leave it out.")
        return follow(member, self.as_json)

    def submit(self, planned: PlannedJob, queue: JobQueue) -> int:
        from mslaunch.cli.submit import submit

        return submit(planned, queue, self.detach, self.as_json, self.viewing)

    def starts(self, _planned: PlannedJob) -> bool:
        return True

    def moving(self) -> AbstractContextManager[Callable[[int], Progress]]:
        from mslaunch.cli.console.progress_bar import progress_bar

        return progress_bar()

    def run(self, launch: Launch) -> int:
        """Run the job in this process and show what happens; return the exit code."""
        output = 1
        if self.as_json:
            output = 2
        if self.detached:
            self.detached.leave(launch.folder.path, launch.folder.launcher_log)
        screen = self.viewing.cover(launch.folder.path) if self.viewing else Screen(output)
        console = Console(launch.plan, screen)
        console.open()
        try:
            final = run_here(launch, console.observe)
        finally:
            was_covered = screen.uncover()
        if was_covered:  # what was written until now went nowhere
            console.open()
            console.say(list(final.notes[-NOTES_SHOWN:]))
        console.close(final)
        if self.as_json and not self.detached:
            common.print_json(final.to_dict())
        return final.exit_code if final.exit_code is not None else 1


@options.launching(_app)
def train(
    context: typer.Context,
    detach: Detach = False,
    view: View = False,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: common.Json = False,
    **typed: Any,
) -> LaunchCommand:
    """Start a distributed job and follow it to its end."""
    request = options.request(typed, context.obj, offers_stdin=not (detach or view))
    return LaunchCommand(request, detach, dry_run, as_json, verbose, view)
