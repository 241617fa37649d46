"""The options of verbs that look at runs. Light: the settings of a launch, and what checks them, are not loaded."""

from __future__ import annotations

from typing import Annotated

import typer

RunsDir = Annotated[
    str | None,
    typer.Option("--runs-dir", "--log_dir", help="Folder that holds the runs.", show_default=False, metavar="DIR"),
]
Run = Annotated[
    str | None,
    typer.Argument(help="The run, a part of its name, its folder, or latest; by default your newest.", metavar="RUN"),
]
OneRun = Annotated[str, typer.Argument(help="The run, a part of its name, its folder, or latest.", metavar="RUN")]
AsOwner = Annotated[
    bool, typer.Option("--as-owner", help="Root only: act on another user's run, with that user's rights.")
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", help="Only runs that are queued, running, succeeded, failed, stopped or lost.", metavar="STATE"
    ),
]
