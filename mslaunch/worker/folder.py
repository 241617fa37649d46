"""A rank's working directory: links to the job's code, env.log, and where output goes."""

from __future__ import annotations

import os

from mslaunch import layout, masking


def make(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def link_code(run_dir: str, rank_dir: str) -> None:
    """Link every entry of code/ into the rank's folder, so that relative paths find what they would have found."""
    code = os.path.join(run_dir, layout.CODE)
    try:
        names = os.listdir(code)
    except FileNotFoundError:
        return
    for name in names:
        if name not in layout.RANK_FILES:
            try:
                os.symlink(os.path.join("..", layout.CODE, name), os.path.join(rank_dir, name))
            except FileExistsError:
                pass


def write_environment(path: str) -> None:
    """Write the environment, with the values of what looks like a secret masked."""
    named = os.environ.get("MSLAUNCH_SECRETS", "").split(",")
    lines = [
        f"{name}={masking.MASK if name in named else masking.masked(name, value)}\n"
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
