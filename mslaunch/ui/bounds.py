"""How much of a run a document holds at most, so that a report stays below 3 MB and a live page is quick."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mslaunch.text import cut_middle, plain


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one document."""

    points: int  # of all curves together
    sources: int
    """Ranks, hosts and devices that have curves of their own; the others are in the band of all."""
    log_bytes: int  # of the ends of all logs together
    texts: int  # characters of a configuration, of a traceback and the like
    columns: int = 160  # of the heat map
    rows: int = 96
    """Of the heat map and of the timeline; beyond that, ranks are put together or left out."""
    spans: int = 1024
    events: int = 400


REPORT = Bounds(points=36_000, sources=16, log_bytes=600_000, texts=120_000)
LIVE = Bounds(points=16_000, sources=16, log_bytes=0, texts=120_000)


def bounded(value: Any, characters: int, items: int = 1024) -> Any:
    """Return a JSON value with bounded texts and lists, whatever somebody has written into a record."""
    if isinstance(value, str):
        return "\n".join(map(plain, cut_middle(value, characters).split("\n")))
    if isinstance(value, dict):
        pairs = list(value.items())[:items]
        return {bounded(str(name), 200): bounded(inner, characters, items) for name, inner in pairs}
    if isinstance(value, list | tuple):
        return [bounded(inner, characters, items) for inner in value[:items]]
    return value


def is_within(folder: Path, path: Path) -> bool:
    """Tell whether a path leads to something in a folder: links may lead out of a run that somebody else has made."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


EXACT = 1 << 53  # below it, a page has every whole number


def number(value: float) -> float | str | None:
    """Write a whole number, such as a step, with all its digits and others with six; JSON has no infinite ones."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    whole = float(value).is_integer() and abs(value) < EXACT
    short = value if whole else float(f"{value:.6g}")
    return int(short) if float(short).is_integer() and abs(short) < EXACT else short
