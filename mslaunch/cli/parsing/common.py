"""What every verb has: a plain app, --json, and tables in columns. Light, since some verbs need nothing else."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mslaunch.cli.console.tables import columns
from mslaunch.text import plain

__all__ = ["Json", "columns", "lasting", "new_app", "say", "say_aside"]

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


def say_aside(text: str) -> None:
    """Tell a person something on standard error, where standard output is for a program."""
    print(f"mslaunch: {plain(text)}", file=sys.stderr, flush=True)


def lasting(seconds: float) -> str:
    """How long something took, or takes, as 1:02:03."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
