"""Failure patterns: what a line of a log tells. The rows are data: see pattern_tables.py for where they come from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from mslaunch import plugins
from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.diagnose.patterns.pattern_tables import Pattern, built_in_patterns, read_added

_OWN_LINES = ("[WARNING] ", "[INFO] ")  # of MindSpore's own log
_LEVELS = (
    "[DEBUG]",
    "[TRACE]",
    "[EVENT]",
    "[INFO]",
    "[WARNING]",
)  # of lines below an error, in MindSpore's log and CANN's


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found in a line, with the line's own values in its summary."""

    pattern: Pattern
    summary: str
    blamed: str | None = None
    """The peer that the line names, as it is written there."""


@dataclass(frozen=True, slots=True)
class Row:
    """A pattern, ready to be tried."""

    pattern: Pattern
    regex: re.Pattern[str]
    literals: frozenset[str] | None
    """A line that holds none of these does not match; None where the pattern has to be tried on every line."""
    ignores: tuple[str, ...] = ()
    """How the lines begin on which it does not count: those of a lower level than its example."""


@cache
def rows() -> tuple[Row, ...]:
    """Read all tables, once and only when a line is to be judged; return their rows in the order they are tried."""
    built_in = built_in_patterns()
    added, problems = read_added(os.environ)
    for trouble in problems:
        plugins.warn(trouble)
    # Healthy ones first, so that they never alarm; then what was added for this site, before what is general.
    ordered = sorted((*added, *built_in), key=lambda pattern: pattern.kind != "healthy")
    return tuple(
        Row(pattern, re.compile(pattern.regex), required_literals(pattern.regex), _ignored_levels(pattern))
        for pattern in ordered
    )


def _ignored_levels(pattern: Pattern) -> tuple[str, ...]:
    """Return the levels below that of the example: a warning that has the words of an error is not that error."""
    if pattern.kind == "healthy" or not pattern.example:
        return ()
    return tuple(takewhile(lambda level: not pattern.example.startswith(level), _LEVELS))


@cache
def _healthy_rows() -> tuple[Row, ...]:
    return tuple(row for row in rows() if row.pattern.kind == "healthy")


def is_healthy_noise(line: str) -> bool:
    """Tell whether a line is one that MindSpore itself writes in healthy runs; what a script prints never is."""
    return line.startswith(_OWN_LINES) and match_line(line, _healthy_rows()) is not None


def match_line(line: str, among: tuple[Row, ...] | None = None, level: int = 0) -> Match | None:
    """Return the first pattern that fits a line, of all or of these rows; its level stands behind some characters."""
    for row in rows() if among is None else among:
        quick = row.literals is None or any(literal in line for literal in row.literals)
        if quick and not line.startswith(row.ignores, level) and (found := row.regex.search(line)):
            blamed = found[row.pattern.blames] if row.pattern.blames else None
            return Match(row.pattern, _fill(row.pattern.summary, found), blamed)
    return None


def _fill(summary: str, found: re.Match[str]) -> str:
    groups = ("", *(group or "" for group in found.groups()))
    return re.sub(r"\{(\d)\}", lambda number: groups[int(number[1])], summary)
