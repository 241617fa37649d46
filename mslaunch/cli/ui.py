"""`mslaunch ui`: runs in the browser, live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mslaunch.cli.parsing import common
from mslaunch.errors import NotReadyError, RequestError
from mslaunch.run.find import default_runs_dir

app = common.new_app()


@app.command()
def ui(
    runs_dir: common.RunsDir = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port; by default 8390 or the next free one.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; others than 127.0.0.1 can be reached by others.")
    ] = "127.0.0.1",
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", metavar="FILE", help="Keep the token in this file; made where it is missing."),
    ] = None,
    allow_stop: Annotated[bool, typer.Option("--allow-stop", help="Runs can be stopped in the page.")] = False,
) -> None:
    """Show all runs of a folder in the browser, live: curves, logs, stacks, comparison."""
    if runs_dir is not None and not Path(runs_dir).is_dir():
        raise RequestError(f"--runs-dir {runs_dir}: no such folder. Name one that holds runs.")
    folder = runs_dir or default_runs_dir(os.environ)
    try:
        from mslaunch.ui.server import serve_runs
    except ImportError as error:
        raise NotReadyError(
            f"{error.name or error} is not installed, and `mslaunch ui` needs it. "
            "Run pip install '.[ui]' in the clone of mslaunch."
        ) from None
    serve_runs(folder, host, port, token_file, allow_stop, lambda text: print(text, flush=True))
