"""What agents are told to measure, and how often."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from mslaunch import plugins
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
_OPTIONAL = ("framework", "completes", "source", "example", "values")
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
        "patterns": [*_table_patterns(), *map(_job_pattern, patterns)],
    }


@cache
def _table_patterns() -> tuple[LinePatternOrder, ...]:
    """Return the rows that plug-ins add, which are made for this site, then those of lines.yaml.

    A wrong one of a plug-in is named on standard error, and the others count. Tests keep the built-in ones right:
    compiling them would cost every start 10 ms.
    """
    added: list[LinePatternOrder] = []
    if _is_offered():
        for name, text in plugins.load_all(GROUP, read_table):
            table, problems = parse_rows(text, name, "rows", checked_pattern)
            added += table
            for trouble in problems:
                plugins.warn(trouble)
    text = resources.files("mslaunch.metrics").joinpath("lines.yaml").read_text(encoding="utf-8")
    return (*added[:MOST_ROWS], *(_pattern(row, built_in=True) for row in load_built_in(text)))


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


def _pattern(row: dict[str, Any], built_in: bool) -> LinePatternOrder:
    return {
        "id": row["id"],
        "literals": row["literals"],
        "regex": _GROUP.sub(lambda group: f"(?P<{group[1]}>{_KINDS[group[2]]})", row["regex"]),
        "fields": [group[1] for group in _GROUP.finditer(row["regex"])],
        "built_in": built_in,
        "role": "completes" if row.get("completes") else "reads",
    }


def checked_pattern(row: Any) -> LinePatternOrder:
    """Make a pattern of what a table of a plug-in holds, or raise a ValueError that says what is wrong with it."""
    check_keys(row, ("id", "literals", "regex", *_OPTIONAL), _OPTIONAL)
    literals = row["literals"]
    if not literals or not are_texts(literals):
        raise ValueError(f"literals: a list of texts is wanted, got {literals!r}")
    if not isinstance(row["id"], str) or not isinstance(row["regex"], str):
        raise ValueError("id and regex: text is wanted")
    if not isinstance(row.get("completes", False), bool):
        raise ValueError(f"completes: expected true or false, got {row['completes']!r}")
    pattern = _pattern(row, built_in=False)
    compiled = compile_regex(pattern["regex"])
    pattern["fields"] = list(compiled.groupindex)
    if len(pattern["fields"]) < compiled.groups:
        raise ValueError("regex: give every group a name, or begin it with ?:")
    if wrong := [name for name in pattern["fields"] if not is_name(name)]:
        raise ValueError(f"regex: no metric can be called {wrong[0]!r}")
    return pattern


def _job_pattern(pattern: LinePattern) -> LinePatternOrder:
    """Its first group is the metric, whatever further groups there are."""
    from mslaunch.diagnose.patterns.literals import required_literals

    return {
        "id": f"launch.metrics {pattern.name}",
        "literals": sorted(required_literals(pattern.regex) or ()),
        "regex": pattern.regex,
        "fields": [pattern.name],
        "built_in": False,
        "role": "adds",
    }
