"""Tables of failure patterns: the built-in one, those of plug-ins, and those in ~/.config/mslaunch/patterns.d."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args

from mslaunch import plugins
from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.documents.row_table import are_texts, check_keys, compile_regex, load_built_in, parse_rows, read_table

GROUP = "mslaunch.patterns"
Kind = Literal["cause", "victim", "healthy"]
_OPTIONAL = ("codes", "source", "example", "blames")


@dataclass(frozen=True, slots=True)
class Pattern:
    """What one kind of failure looks like in a log, and what to do about it."""

    id: str
    kind: Kind
    regex: str
    summary: str
    advice: str
    source: str = ""
    example: str = ""
    blames: int = 0
    """The group of the regex that names the peer which is waited for: a rank, an address or a device; 0 for none."""
    codes: tuple[str, ...] = ()
    """Error codes that it explains, as the log prints them: EI0006, 507011, XID79."""


@cache
def built_in_patterns() -> tuple[Pattern, ...]:
    """Return the rows of the built-in tables, which tests keep right: those of one field, then the general ones."""
    folder = resources.files("mslaunch.diagnose.patterns").joinpath("tables")
    files = sorted(folder.iterdir(), key=lambda file: (file.name == "general.yaml", file.name))
    texts = (file.read_text(encoding="utf-8") for file in files if file.name.endswith(".yaml"))
    return tuple(_make(row) for text in texts for row in load_built_in(text))


def _make(row: dict[str, Any]) -> Pattern:
    return Pattern(**{**row, "codes": tuple(row.get("codes", ()))})


def read_added(environment: Mapping[str, str]) -> tuple[list[Pattern], list[str]]:
    """Return what this user and plug-ins add, in this order, and what is wrong with it; the rest counts."""
    patterns: list[Pattern] = []
    problems: list[str] = []
    for name, text in (*_user_tables(environment, problems), *plugins.load_all(GROUP, read_table)):
        rows, wrong = parse_rows(text, name, "patterns", checked_pattern)
        patterns += rows
        problems += wrong
    return patterns, problems


def _user_tables(environment: Mapping[str, str], problems: list[str]) -> Iterator[tuple[str, str]]:
    """Read what is in the folder of the user's configuration, which is where the XDG specification has it."""
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path(environment.get("HOME", "")) / ".config"
    for path in sorted(base.glob("mslaunch/patterns.d/*.yaml")) if base.is_absolute() else ():
        try:
            yield read_table(path)
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{path}: cannot be read: {error}")


def checked_pattern(row: Any) -> Pattern:
    """Make a pattern of a row, or raise a ValueError that says what is wrong with it."""
    check_keys(row, [field.name for field in fields(Pattern)], _OPTIONAL)
    for key, value in row.items():
        _check_value(key, value)
    if row["kind"] not in get_args(Kind):
        raise ValueError(f"kind: {', '.join(get_args(Kind))} are known, got {row['kind']!r}")
    pattern = _make(row)
    compiled = compile_regex(pattern.regex)
    groups = max(map(int, re.findall(r"\{(\d)\}", pattern.summary)), default=0)
    if groups > compiled.groups:
        raise ValueError(f"summary: {{{groups}}} is used, and regex has {compiled.groups} groups")
    if pattern.blames > compiled.groups:
        raise ValueError(f"blames: {pattern.blames} is named, and regex has {compiled.groups} groups")
    if pattern.example and not compiled.search(pattern.example):
        raise ValueError("example: regex does not match it")
    return pattern


def _check_value(key: str, value: Any) -> None:
    if key == "blames":
        if type(value) is not int or value < 1:
            raise ValueError(f"blames: the number of a group of regex is wanted, got {value!r}")
    elif key == "codes":
        if not are_texts(value):
            raise ValueError(f"codes: a list of texts is wanted, got {value!r}")
    elif not isinstance(value, str) or (not value and key not in _OPTIONAL):
        raise ValueError(f"{key}: text is wanted, got {value!r}")


_OWN_LINES = ("[WARNING] ", "[INFO] ")  # of MindSpore's own log
_LEVELS = ("[DEBUG]", "[TRACE]", "[EVENT]", "[INFO]", "[WARNING]")  # below an error, in MindSpore's log and CANN's


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern found in a line, with the line's own values in its summary."""

    pattern: Pattern
    summary: str
    blamed: str | None = None
    """The peer that the line names, as it is written there."""


@dataclass(frozen=True, slots=True)
class CompiledPattern:
    """A pattern, ready to be tried."""

    pattern: Pattern
    regex: re.Pattern[str]
    literals: frozenset[str] | None
    """A line that holds none of these does not match; None where the pattern has to be tried on every line."""
    ignores: tuple[str, ...] = ()
    """How the lines begin on which it does not count: those of a lower level than its example."""


@cache
def rows() -> tuple[CompiledPattern, ...]:
    """Read all tables, once and only when a line is to be judged; return their rows in the order they are tried."""
    built_in = built_in_patterns()
    added, problems = read_added(os.environ)
    for trouble in problems:
        plugins.warn(trouble)
    # Healthy ones first, so that they never alarm; then what was added for this site, before what is general.
    ordered = sorted((*added, *built_in), key=lambda pattern: pattern.kind != "healthy")
    return tuple(
        CompiledPattern(pattern, re.compile(pattern.regex), required_literals(pattern.regex), _ignored_levels(pattern))
        for pattern in ordered
    )


def _ignored_levels(pattern: Pattern) -> tuple[str, ...]:
    """Return the levels below that of the example: a warning that has the words of an error is not that error."""
    if pattern.kind == "healthy" or not pattern.example:
        return ()
    return tuple(takewhile(lambda level: not pattern.example.startswith(level), _LEVELS))


@cache
def _healthy_rows() -> tuple[CompiledPattern, ...]:
    return tuple(row for row in rows() if row.pattern.kind == "healthy")


def is_healthy_noise(line: str) -> bool:
    """Tell whether a line is one that MindSpore itself writes in healthy runs; what a script prints never is."""
    return line.startswith(_OWN_LINES) and match_line(line, _healthy_rows()) is not None


def match_line(line: str, among: tuple[CompiledPattern, ...] | None = None, level: int = 0) -> Match | None:
    """Return the first pattern that fits a line, of all or of these rows; its level stands behind some characters."""
    for row in rows() if among is None else among:
        quick = row.literals is None or any(literal in line for literal in row.literals)
        if quick and not line.startswith(row.ignores, level) and (match := row.regex.search(line)):
            blamed = match[row.pattern.blames] if row.pattern.blames else None
            return Match(row.pattern, _fill(row.pattern.summary, match), blamed)
    return None


def _fill(summary: str, match: re.Match[str]) -> str:
    groups = ("", *(group or "" for group in match.groups()))
    return re.sub(r"\{(\d)\}", lambda number: groups[int(number[1])], summary)
