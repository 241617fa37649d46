"""What agents are told to measure, and how often."""

from __future__ import annotations

from collections.abc import Iterator

from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.metrics.table import LineRow, added_rows, built_in_rows
from mslaunch.plan.model import LinePattern
from mslaunch.shared.messages import LinePatternOrder, MetricsOrder

EVERY = 1.0
MOST = 20
RESOURCES = 2.0
LOG_ROWS = 350
"""Rows a second, from the logs of all ranks of a job, that a launcher can be expected to take."""
RESOURCE_ROWS = 150
DEVICE_TARGETS = ("Ascend", "GPU")


def metrics_order(asked: tuple[LinePattern, ...] | None, ranks: int, target: str) -> MetricsOrder | None:
    """Return what an agent has to know to measure; None where nothing is to be measured.

    The more ranks a job has, the less often each of them is looked at.
    """
    if asked is None:
        return None
    every = max(EVERY, ranks / LOG_ROWS)
    return {
        "every": every,
        "most": int(min(MOST, max(1.0, LOG_ROWS * every / max(1, ranks)))),
        "resources": max(RESOURCES, ranks / RESOURCE_ROWS),
        "devices": target if target in DEVICE_TARGETS else None,
        "patterns": [*_rows(), *map(_added, asked)],
    }


def _rows() -> Iterator[LinePatternOrder]:
    """Those of plug-ins first: they are made for this site."""
    for built_in, rows in ((False, added_rows()), (True, built_in_rows())):
        yield from (_row(row, built_in) for row in rows)


def _row(row: LineRow, built_in: bool) -> LinePatternOrder:
    return {
        "id": row.id,
        "literals": list(row.literals),
        "regex": row.regex,
        "fields": list(row.fields),
        "built_in": built_in,
        "role": "completes" if row.completes else "reads",
    }


def _added(asked: LinePattern) -> LinePatternOrder:
    """Its first group is the metric, whatever further groups there are."""
    return {
        "id": f"launch.metrics {asked.name}",
        "literals": sorted(required_literals(asked.regex) or ()),
        "regex": asked.regex,
        "fields": [asked.name],
        "built_in": False,
        "role": "adds",
    }
