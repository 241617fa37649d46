"""Failure patterns: what a line of a log tells. The rows are data: see pattern_tables.py for where they come from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache

from mslaunch import plugins
from mslaunch.diagnose.pattern_tables import Pattern, built_in_patterns, read_added


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found in a line, with the line's own values in its summary."""

    pattern: Pattern
    summary: str


@dataclass(frozen=True, slots=True)
class _Table:
    """All patterns in the order in which they are tried."""

    rows: tuple[tuple[re.Pattern[str], Pattern], ...]
    quick: tuple[re.Pattern[str], ...]
    """A line that none of these finds is in no row. Added patterns cannot be joined: they may have names or flags."""


@cache
def _table() -> _Table:
    """Read all tables, once and only when a line is to be judged."""
    built_in = built_in_patterns()
    added, problems = read_added(os.environ)
    for trouble in problems:
        plugins.warn(trouble)
    # Healthy ones first, so that they never alarm; then what was added for this site, before what is general.
    ordered = sorted((*added, *built_in), key=lambda pattern: pattern.kind != "healthy")
    joined = re.compile("|".join(f"(?:{pattern.regex})" for pattern in built_in))
    return _Table(
        rows=tuple((re.compile(pattern.regex), pattern) for pattern in ordered),
        quick=(joined, *(re.compile(pattern.regex) for pattern in added)),
    )


def match_line(line: str) -> Match | None:
    """Return the first pattern that fits a line."""
    table = _table()
    if not any(regex.search(line) for regex in table.quick):
        return None
    for regex, pattern in table.rows:
        if found := regex.search(line):
            return Match(pattern, _fill(pattern.summary, found))
    return None


def _fill(summary: str, found: re.Match[str]) -> str:
    groups = ("", *(group or "" for group in found.groups()))
    return re.sub(r"\{(\d)\}", lambda number: groups[int(number[1])], summary)
