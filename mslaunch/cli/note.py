"""`mslaunch note`: what people say about a run, and the tags by which they find it."""

from __future__ import annotations

from typing import Annotated

import typer

from mslaunch.cli.console.describe import describe_labels
from mslaunch.cli.parsing import common
from mslaunch.run import labels

app = common.new_app()


@app.command()
def note(
    name: common.OneRun,
    text: Annotated[str | None, typer.Argument(help="The note; without it, what the run has is shown.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag.", metavar="NAME")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option("--remove-tag", help="Remove a tag.", metavar="NAME")] = None,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Write a note about a run, or tag it; `mslaunch ps` and `mslaunch status` show both."""
    run = common.find_run(name, runs_dir)
    if text is not None or tag or remove_tag:
        own = labels.label(run.folder, text, tag or (), remove_tag or ())
    else:
        own = labels.read(run.folder)
    if as_json:
        common.print_json(own.to_dict())
    else:
        print(describe_labels(own) or f"{run.name} has no notes and no tags.\n", end="")
