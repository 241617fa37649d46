"""How a program is named in settings and on the command line."""

from __future__ import annotations

from typing import Any

SETTINGS = ("script", "module", "command")
"""The settings that name a program; a job has one of them."""

COMMAND_LINE = "the command line"
"""Where a command comes from that was typed as it is."""


def settings_of(command: tuple[str, ...], is_module: bool = False) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The setting that a typed command stands for, and the arguments that follow."""
    if is_module:
        return {"module": command[0]}, command[1:]
    return ({"script": command[0]}, command[1:]) if command[0].endswith(".py") else ({"command": command}, ())
