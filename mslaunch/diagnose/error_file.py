"""error.json: the exception that a rank ended with, as its worker has recorded it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import make
from mslaunch.shared import layout


def read_error(rank_folder: Path) -> dict[str, Any] | None:
    """Return what a rank's error.json holds; an exception of a mere thread is not why a rank ended."""
    try:
        return parse_error(read_text(rank_folder / layout.ERROR, errors="replace", only_files=True))
    except (OSError, Unreadable):
        return None


def parse_error(text: str) -> dict[str, Any] | None:
    """Return what the text of an error.json says."""
    try:
        error = make(_ErrorFile, parse_json(text))
    except Unreadable:
        return None
    return asdict(error) if error.thread is None else None


@dataclass(frozen=True, slots=True)
class _ErrorFile:
    """What is used of a rank's error.json."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    thread: str | None = None
