"""Runs side by side: their curves laid over each other, and what `mslaunch compare` finds to differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mslaunch.run.compare import CodeChange, Section, compare_runs, format_value
from mslaunch.run.metrics_file import Metrics
from mslaunch.run.run import Run
from mslaunch.text import plain
from mslaunch.ui.bounds import bounded
from mslaunch.ui.curves import NOT_DRAWN, thin_series

POINTS = 600
SHORT = 300  # characters of a value


def compare(runs: Sequence[Run], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the curves of runs, and where the runs differ; secrets are masked, also those of the environment."""
    comparison = compare_runs([run.folder for run in runs], environment)
    return {
        "names": [plain(run.name) for run in runs],
        "curves": [curve for run in runs for curve in _curves(run)],
        "sections": [_section(section) for section in comparison.sections],
        "code": [_change(change) for change in comparison.code],
        "equal_files": comparison.equal_files,
        "without_code": bounded(comparison.without_code, SHORT),
    }


def _section(section: Section) -> dict[str, Any]:
    rows = [[difference.name, *(_shown(value) for value in difference.values)] for difference in section.differences]
    return {"title": section.title, "equal": section.equal, "rows": bounded(rows, SHORT)}


def _shown(value: Any) -> str | None:
    return None if value is None else format_value(value)


def _change(change: CodeChange) -> dict[str, Any]:
    lines = [plain(line)[:SHORT] for line in change.diff]
    return {"path": plain(change.path), "run": plain(change.run), "kind": change.kind, "diff": "\n".join(lines)}


def _curves(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the curves of a run's first rank, attempt by attempt, by the time since its own start."""
    metrics = run.metrics()
    try:
        yield from _curves_of(run, metrics)
    finally:
        metrics.close()


def _curves_of(run: Run, metrics: Metrics) -> Iterator[dict[str, Any]]:
    table = metrics.table
    rank = min((source.rank for source in table.sources if source.rank is not None), default=None)
    own = [source for source in table.sources if source.rank is not None and source.rank == rank]
    first = [series.time[0] for source in own for series in table.of(source).values()]
    for source in own:
        for name, series in table.of(source).items():
            if name not in NOT_DRAWN:
                who = {"kind": "rank", "run": plain(run.name), "rank": source.rank, "attempt": source.attempt}
                yield {**who, "name": name, **thin_series(series, min(first), POINTS)}
