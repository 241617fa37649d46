"""A rank's own folder: env.log, and where output goes."""

from __future__ import annotations

import os

from mslaunch.shared import secret_names


def make(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def write_environment(path: str) -> None:
    """Write the environment, with the values of what looks like a secret masked."""
    named = os.environ.get("MSLAUNCH_SECRETS", "").split(",")
    lines = [
        f"{name}={secret_names.MASK if name in named else secret_names.masked(name, value)}\n"
        for name, value in sorted(os.environ.items())
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(lines)


def redirect_output(path: str) -> None:
    """Send output and errors to one file, each write appended whole."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
