"""Runs side by side: their curves laid over each other, and where values, configuration and code differ."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import MslaunchError
from mslaunch.masking import masked
from mslaunch.metrics.rows import Source
from mslaunch.store.metrics import Metrics
from mslaunch.store.run import Run
from mslaunch.ui.bounds import is_within
from mslaunch.ui.curves import NOT_DRAWN, number, thin_series
from mslaunch.words import cut_line, plain

POINTS = 600
LARGEST_FILE = 1 << 20
MOST_FILES = 5000
FILES_SHOWN = 40
DIFF_LINES = 400
_BY_THE_RUN = ("run_id", "runs_dir")
"""Settings that differ between any two runs."""

Row = list[str | None]


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the curves of runs, and where the runs differ."""
    tables = [Metrics(run.folder.metrics) for run in runs]
    try:
        drawn = [curve for run, one in zip(runs, tables, strict=True) for curve in _curves(run, one)]
        last = [_last(one) for one in tables]
    finally:
        for one in tables:
            one.close()
    return {
        "names": [plain(run.name) for run in runs],
        "curves": drawn,
        "values": differing(last, all_rows=True),
        "config": differing([_configuration(run) for run in runs]),
        "code": code_differences([run.folder.code for run in runs]),
    }


def _first_rank(metrics: Metrics) -> int | None:
    return min((source.rank for source in metrics.table.sources if source.rank is not None), default=None)


def _curves(run: Run, metrics: Metrics) -> Iterator[dict[str, Any]]:
    """Yield the curves of a run's first rank, attempt by attempt, by the time since its own start."""
    rank = _first_rank(metrics)
    own = [source for source in metrics.table.sources if source.rank is not None and source.rank == rank]
    first = [series.time[0] for source in own for series in metrics.table.of(source).values()]
    for source in own:
        for name, series in metrics.table.of(source).items():
            if name not in NOT_DRAWN:
                who = {"kind": "rank", "run": plain(run.name), "rank": source.rank, "attempt": source.attempt}
                yield {**who, "name": name, **thin_series(series, min(first), POINTS)}


def _last(metrics: Metrics) -> dict[str, str]:
    """Return the last values of the first rank, and its least loss."""
    rank = _first_rank(metrics)
    if rank is None:
        return {}
    found = {name: str(number(value)) for name, value in metrics.last(rank).items()}
    attempts = [source for source in metrics.table.sources if source == Source(source.attempt, rank)]
    losses = [series for source in attempts if (series := metrics.table.of(source).get("loss"))]
    least = [value for series in losses for value in series.least if not math.isnan(value)]
    return {**found, **({"least loss": str(number(min(least)))} if least else {})}


def _configuration(run: Run) -> dict[str, str]:
    """Return the configuration of the script and the settings of the launcher, by dotted names."""
    found: dict[str, str] = {}
    try:
        path = run.path / layout.CONFIG_JSON
        values = parse_json(read_text(path, only_files=True)) if is_within(run.path, path) else {}
        found |= {name: masked(name, value) for name, value in flatten(values)}
    except (OSError, Unreadable):
        pass
    try:
        sources = run.plan.sources
    except MslaunchError:
        return found
    own = {name: source for name, source in sources.items() if name not in _BY_THE_RUN}
    return found | {f"launch.{name}": source.rpartition(", from ")[0] for name, source in own.items()}


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values of nested mappings by dotted names."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{name}.{key}" if name else str(key))
    elif name:
        yield name, str(value)


def differing(found: Sequence[dict[str, str]], all_rows: bool = False) -> list[Row]:
    """Return a row for every name whose values are not all the same, or for all names."""
    names = dict.fromkeys(name for one in found for name in one)
    rows: list[Row] = [[name, *(one.get(name) for one in found)] for name in names]
    shown = (row for row in rows if all_rows or len(set(row[1:])) > 1)
    return [[None if cell is None else cut_line(plain(cell), 300) for cell in row] for row in shown]


def code_differences(folders: Sequence[Path]) -> list[dict[str, str]]:
    """Return how the sources of each further run differ from those of the first."""
    sources = [_sources(folder) for folder in folders]
    found: list[dict[str, str]] = []
    for at, other in enumerate(sources[1:], start=2):
        for path in sorted(sources[0].keys() | other.keys()):
            if len(found) < FILES_SHOWN and (diff := _diff(path, sources[0].get(path), other.get(path))):
                found.append({"path": plain(path), "runs": f"run 1 and run {at}", "diff": diff})
    return found


def _sources(folder: Path) -> dict[str, Path]:
    """Return the files of a snapshot that were copied; links lead to data, which all runs share."""
    found: dict[str, Path] = {}
    if not is_within(folder.parent, folder):
        return found
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if name != "__pycache__"]
        for name in names:
            path = Path(place) / name
            if len(found) < MOST_FILES and not path.is_symlink() and path.is_file():
                found[str(path.relative_to(folder))] = path
    return found


def _diff(path: str, one: Path | None, other: Path | None) -> str:
    before, after = _text(one), _text(other)
    if before == after:
        return ""
    lines = difflib.unified_diff(before, after, f"run 1: {path}", f"other: {path}", lineterm="", n=2)
    shown = [cut_line(plain(line), 300) for line, _ in zip(lines, range(DIFF_LINES), strict=False)]
    return "\n".join([*shown, *(["... further lines are left out"] if len(shown) == DIFF_LINES else [])])


def _text(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return read_text(path, LARGEST_FILE, errors="replace", only_files=True).splitlines()
    except (OSError, Unreadable):
        return []
