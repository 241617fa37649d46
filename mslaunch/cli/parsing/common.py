"""What every verb has: a plain app, --json, and lines for people."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from mslaunch.text import plain

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def new_app() -> typer.Typer:
    """Return a typer app with plain help: rich's costs 100 ms."""
    names = {"help_option_names": ["-h", "--help"]}
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=names
    )


def print_json(document: object) -> None:
    print(json.dumps(document, indent=1))


def say(text: str) -> None:
    """Print a line for people at once."""
    print(f"mslaunch: {plain(text)}", flush=True)


def say_aside(text: str) -> None:
    """Print a line for people to standard error, where standard output is for a program."""
    print(f"mslaunch: {plain(text)}", file=sys.stderr, flush=True)
