"""Tags and notes of a run in words."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from mslaunch.words import plain

if TYPE_CHECKING:
    from mslaunch.api import Labels


def describe_labels(labels: Labels) -> str:
    """One line for the tags and one for each note; nothing where there are none."""
    lines = [f"tags: {', '.join(labels.tags)}"] if labels.tags else []
    for note in labels.notes:
        lines.append(f"{_local(note.time)} {' '.join(note.text.split())}")
    return "".join(f"{plain(line)}\n" for line in lines)


def _local(time: str) -> str:
    try:
        return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # a file may hold anything
        return "-"
