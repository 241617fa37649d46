"""`mslaunch report`: one HTML file that shows a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.text import plain
from mslaunch.ui.page import make_report, report_document, write_report

app = common.new_app()


@app.command()
def report(
    name: common.Run = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="The file; by default report.html in the run's folder. -: print it."),
    ] = None,
    force: common.Force = False,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
) -> None:
    """Write a run as one HTML file: curves, verdict, timeline, configuration, ends of the logs."""
    if output not in (None, "-"):
        common.check_new(output, force)
    run = common.find_run(name, runs_dir)
    if as_json:
        print(json.dumps(report_document(run)))
    elif output == "-":
        sys.stdout.write(make_report(run))
    else:
        print(plain(str(write_report(run, Path(output) if output else None))))
