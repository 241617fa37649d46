"""Runs in the browser, for the verbs that show them there. Nothing of it is imported before it is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mslaunch.run.run import Run


def make_report(run: Run) -> str:
    """Return the report of a run as HTML."""
    from mslaunch.ui.page import make_report as made

    return made(run)


def report_document(run: Run) -> dict[str, Any]:
    """Return what the report of a run holds, as JSON."""
    from mslaunch.ui.page import report_document as document

    return document(run)


def write_report(run: Run, path: Path | None) -> Path:
    """Write the report of a run, by default into its folder, and return where it is."""
    from mslaunch.ui.page import write_report as write

    return write(run, path)


def serve_ui(
    runs_dir: str, host: str, port: int | None, token_file: str | None, may_stop: bool, tell: Callable[[str], None]
) -> None:
    """Show the runs of a folder in the browser until a signal ends the program; `tell` gets the address."""
    from mslaunch.errors import NotReadyError

    try:
        from mslaunch.ui import server
    except ImportError as error:
        raise NotReadyError(
            f"{error.name or error} is not installed, and `mslaunch ui` needs it. "
            "Run pip install '.[ui]' in the clone of mslaunch."
        ) from None
    server.serve_runs(runs_dir, host, port, token_file, may_stop, tell)
