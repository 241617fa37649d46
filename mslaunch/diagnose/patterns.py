"""The table of failure patterns: data in patterns.yaml, one row a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import yaml

Kind = Literal["cause", "victim", "healthy"]


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one kind of failure looks like in a log, and what to do about it."""

    id: str
    kind: Kind
    regex: str
    summary: str
    advice: str
    source: str
    example: str


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found in a line, with the line's own values in its summary."""

    pattern: Pattern
    summary: str


@cache
def load_patterns() -> tuple[Pattern, ...]:
    text = resources.files("mslaunch.diagnose").joinpath("patterns.yaml").read_text()
    return tuple(Pattern(**row) for row in yaml.safe_load(text))


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Pattern], ...]:
    return tuple((re.compile(pattern.regex), pattern) for pattern in load_patterns())


@cache
def _any() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern.regex})" for pattern in load_patterns()))


def match_line(line: str) -> Match | None:
    """Return the first pattern of the table that fits a line. Healthy ones come first there, so they never alarm."""
    if not _any().search(line):
        return None
    for regex, pattern in _compiled():
        if found := regex.search(line):
            return Match(pattern, _fill(pattern.summary, found))
    return None


def _fill(summary: str, found: re.Match[str]) -> str:
    groups = ("", *(group or "" for group in found.groups()))
    return re.sub(r"\{(\d)\}", lambda number: groups[int(number[1])], summary)
