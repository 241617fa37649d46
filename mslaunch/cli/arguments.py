"""Command lines of verbs that launch: what stands before `--` is ours, what follows is the script's."""

from __future__ import annotations

import sys
from typing import Any

from mslaunch.errors import WRONG_REQUEST


def call(app: Any, args: list[str], **how: Any) -> object:
    """Call a verb's app with what stands before `--`; what follows is for the script."""
    own, script_args = split_args(args)
    try:
        return app(own, obj=script_args, **how)
    except SystemExit as end:
        if end.code == WRONG_REQUEST:
            print("Put the script's arguments after --.", file=sys.stderr)
        raise


def split_args(args: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Cut a command line at `--`: what follows belongs to the script."""
    if "--" not in args:
        return args, ()
    at = args.index("--")
    return args[:at], tuple(args[at + 1 :])


def given(**flags: Any) -> dict[str, Any]:
    """Keep the flags that were typed."""
    return {name: value for name, value in flags.items() if value not in (None, {})}
