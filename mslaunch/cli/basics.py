"""What every verb has: a plain app, --json, and tables in columns. Light, since some verbs need nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from mslaunch.words import plain

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def new_app() -> typer.Typer:
    """A typer app with plain help: rich's costs 100 ms."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=names
    )


def say(text: str) -> None:
    """Tell a person something, at once."""
    print(f"mslaunch: {plain(text)}", flush=True)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first row being their names."""
    # Names come from files, and a file may say anything, even to a terminal.
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def lasting(started: str, ended: str | None, now: datetime) -> str:
    """How long something took, or takes, as 1:02:03."""
    end = datetime.fromisoformat(ended) if ended else now
    seconds = int((end - datetime.fromisoformat(started)).total_seconds())
    hours, rest = divmod(max(0, seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
