"""`mslaunch export`: the metrics of a run for TensorBoard, or as CSV."""

from __future__ import annotations

from typing import Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.errors import RequestError
from mslaunch.run.export import export_csv, export_tensorboard
from mslaunch.text import counted

app = common.new_app()


@app.command()
def export(
    name: common.Run = None,
    tensorboard: Annotated[
        str | None,
        typer.Option("--tensorboard", help="Folder for event files, for `tensorboard --logdir DIR`.", metavar="DIR"),
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", help="File for one line a number; - is standard output.", metavar="FILE")
    ] = None,
    force: common.Force = False,
    runs_dir: common.RunsDir = None,
) -> None:
    """Write the metrics of a run for TensorBoard, or as CSV."""
    if tensorboard is None and csv is None:
        raise RequestError("export: say what to write: --tensorboard DIR or --csv FILE.")
    if csv not in (None, "-"):
        common.check_new(csv, force)
    run = common.find_run(name, runs_dir)
    if csv is not None:
        try:
            rows = export_csv(run.folder, csv)
        except BrokenPipeError:  # the reader has seen enough: `mslaunch export --csv - | head`
            raise typer.Exit from None
        if csv != "-":
            print(f"{csv}: {counted(rows, 'row')} of {run.name}")
    if tensorboard is not None:
        files = export_tensorboard(run.folder, tensorboard)
        print(f"{tensorboard}/{run.name}: {counted(len(files), 'event file')}")
