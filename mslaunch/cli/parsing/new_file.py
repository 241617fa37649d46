"""The file that a verb writes where the user says: never over another one, unless --force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mslaunch.errors import RequestError

Force = Annotated[bool, typer.Option("--force", help="Overwrite the file, where it exists.")]


def check_new(name: str, force: bool) -> None:
    """Refuse a file that is there; pipes and what is below /dev, such as /dev/stdout, are written to."""
    path = Path(name)
    is_there = path.is_file() or (path.is_symlink() and not path.exists())
    if is_there and not force and Path("/dev") not in path.parents:
        raise RequestError(f"{name}: exists already. Name another file, or give --force to overwrite it.")


def write_new(name: str, content: str | bytes, force: bool) -> None:
    """Write a file that is not there yet."""
    check_new(name, force)
    data = content.encode() if isinstance(content, str) else content
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise RequestError(f"{name}: cannot be written: {error.strerror}. Give another -o.") from None
