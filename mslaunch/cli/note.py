"""`mslaunch note`: what people say about a run, and the tags by which they find it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mslaunch import api
from mslaunch.cli.console.describe import describe_labels
from mslaunch.cli.parsing import common, run_options
from mslaunch.cli.parsing.run_options import find_run

app = common.new_app()


@app.command()
def note(
    run: run_options.OneRun,
    text: Annotated[str | None, typer.Argument(help="The note; without it, what the run has is shown.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag.", metavar="NAME")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option("--remove-tag", help="Remove a tag.", metavar="NAME")] = None,
    runs_dir: run_options.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Write a note about a run, or tag it; `mslaunch ps` and `mslaunch status` show both."""
    found = find_run(run, runs_dir)
    changes = text is not None or tag or remove_tag
    labels = api.label_run(found, text, tag or (), remove_tag or ()) if changes else api.labels_of(found)
    if as_json:
        print(json.dumps(labels.to_dict(), indent=1))
    else:
        print(describe_labels(labels) or f"{found.name} has no notes and no tags.\n", end="")
