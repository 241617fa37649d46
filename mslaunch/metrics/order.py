"""What agents are told to measure, and how often."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mslaunch import plugins
from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.documents.row_table import are_texts, check_keys, compile_regex, load_built_in, parse_rows, read_table
from mslaunch.plan.model import LinePattern
from mslaunch.shared.messages import LinePatternOrder, MetricsOrder
from mslaunch.shared.metric_values import is_name

GROUP = "mslaunch.metrics"
MOST_ROWS = 200
"""Of all tables of plug-ins together: each row is tried on every line that holds its literals."""
_GROUP = re.compile(r"<([a-z][a-z0-9_]*):(int|number)>")
_KINDS = {
    "int": r"\d{1,18}",
    "number": r"[-+]?(?:(?:\d{1,18}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?|(?i:nan|inf(?:inity)?)\b)",
}
_NEEDED = ("id", "literals", "regex")
_OPTIONAL = ("framework", "completes", "source", "example", "values")


@dataclass(frozen=True, slots=True)
class LineRow:
    """What one kind of line looks like, and which metrics it tells."""

    id: str
    literals: tuple[str, ...]
    """A line that holds none of these is not of this kind."""
    regex: str
    """As Python takes it."""
    fields: tuple[str, ...]
    """The metric of each group; none where the match is an object whose numbers are taken."""
    framework: str = ""
    completes: bool = False
    """Whether it adds to what another row has read from a line, and reads no line alone."""
    source: str = ""
    example: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@cache
def built_in_rows() -> tuple[LineRow, ...]:
    """Return the rows of lines.yaml, which tests keep right: compiling them would cost every start 10 ms."""
    text = resources.files("mslaunch.metrics").joinpath("lines.yaml").read_text(encoding="utf-8")
    return tuple(_row(row) for row in load_built_in(text))


def _row(row: dict[str, Any]) -> LineRow:
    regex = row["regex"]
    groups = tuple(group[1] for group in _GROUP.finditer(regex))
    more = {key: row[key] for key in _OPTIONAL if key in row}
    return LineRow(row["id"], tuple(row["literals"]), _written_out(regex), groups, **more)


def _written_out(regex: str) -> str:
    return _GROUP.sub(lambda group: f"(?P<{group[1]}>{_KINDS[group[2]]})", regex)


def make_row(row: Any) -> LineRow:
    """Make a row of what a table holds, or raise a ValueError that says what is wrong with it."""
    check_keys(row, (*_NEEDED, *_OPTIONAL), _OPTIONAL)
    literals = row["literals"]
    if not literals or not are_texts(literals):
        raise ValueError(f"literals: a list of texts is wanted, got {literals!r}")
    if not isinstance(row["id"], str) or not isinstance(row["regex"], str):
        raise ValueError("id and regex: text is wanted")
    if not isinstance(row.get("completes", False), bool):
        raise ValueError(f"completes: expected true or false, got {row['completes']!r}")
    made = _row(row)
    return replace(made, fields=_check_regex(made.regex))


def _check_regex(regex: str) -> tuple[str, ...]:
    """Return what the groups of a regex are called."""
    compiled = compile_regex(regex)
    names = {number: name for name, number in compiled.groupindex.items()}
    if len(names) < compiled.groups:
        raise ValueError("regex: give every group a name, or begin it with ?:")
    if wrong := [name for name in names.values() if not is_name(name)]:
        raise ValueError(f"regex: no metric can be called {wrong[0]!r}")
    return tuple(names[number] for number in sorted(names))


@cache
def added_rows() -> tuple[LineRow, ...]:
    """Return the rows that plug-ins add; a wrong one is named on standard error, and the others count."""
    if not _is_offered():
        return ()
    rows: list[LineRow] = []
    for name, text in plugins.load_all(GROUP, read_table):
        table, problems = parse_table(text, name)
        rows += table
        for trouble in problems:
            plugins.warn(trouble)
    return tuple(rows[:MOST_ROWS])


def _is_offered() -> bool:
    """Tell whether an installed package may add rows: to load importlib.metadata takes 20 ms of every start."""
    header = f"[{GROUP}]".encode()
    for folder in filter(None, sys.path):
        try:
            for file in Path(folder).glob("*-info/entry_points.txt"):
                if header in file.read_bytes():
                    return True
        except OSError:
            continue
    return False


def parse_table(text: str, name: str) -> tuple[list[LineRow], list[str]]:
    """Return the rows that are right, and one line for each that is not."""
    return parse_rows(text, name, "rows", make_row)


EVERY = 1.0
MOST = 20
RESOURCES = 2.0
LOG_ROWS = 350
"""Rows a second, from the logs of all ranks of a job, that a launcher can be expected to take."""
RESOURCE_ROWS = 150
DEVICE_TARGETS = ("Ascend", "GPU")


def metrics_order(patterns: tuple[LinePattern, ...] | None, ranks: int, target: str) -> MetricsOrder | None:
    """Return what an agent has to know to measure; None where nothing is to be measured.

    The more ranks a job has, the less often each of them is looked at.
    """
    if patterns is None:
        return None
    every = max(EVERY, ranks / LOG_ROWS)
    return {
        "every": every,
        "most": int(min(MOST, max(1.0, LOG_ROWS * every / max(1, ranks)))),
        "resources": max(RESOURCES, ranks / RESOURCE_ROWS),
        "devices": target if target in DEVICE_TARGETS else None,
        "patterns": [*_rows(), *map(_added, patterns)],
    }


def _rows() -> Iterator[LinePatternOrder]:
    """Those of plug-ins first: they are made for this site."""
    for built_in, rows in ((False, added_rows()), (True, built_in_rows())):
        yield from (_order_row(row, built_in) for row in rows)


def _order_row(row: LineRow, built_in: bool) -> LinePatternOrder:
    return {
        "id": row.id,
        "literals": list(row.literals),
        "regex": row.regex,
        "fields": list(row.fields),
        "built_in": built_in,
        "role": "completes" if row.completes else "reads",
    }


def _added(pattern: LinePattern) -> LinePatternOrder:
    """Its first group is the metric, whatever further groups there are."""
    return {
        "id": f"launch.metrics {pattern.name}",
        "literals": sorted(required_literals(pattern.regex) or ()),
        "regex": pattern.regex,
        "fields": [pattern.name],
        "built_in": False,
        "role": "adds",
    }
