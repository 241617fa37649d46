"""How the ranks of a run stand: their last numbers, how fast their steps go by, and whether they still do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mslaunch.metrics.pace import seconds_silent, step_time_of
from mslaunch.metrics.progress import find_extent
from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import STEP_NAMES, SeriesTable
from mslaunch.runs.record import RankRecord, RunRecord
from mslaunch.ui.numbers import number
from mslaunch.words import plain

Row = dict[str, Any]


def describe_ranks(table: SeriesTable, record: RunRecord, now: float, most: int) -> list[Row]:
    """Return how each rank stands, with its last numbers."""
    is_running = record.state == "running"
    return [
        {
            "rank": rank.rank,
            "host": plain(rank.host),
            "device": rank.device_id,
            "pid": rank.pid,
            "state": "gone" if record.state == "lost" and rank.state == "running" else rank.state,
            "code": rank.exit_code,
            "signal": rank.signal,
            **_numbers(table, Source(len(record.attempts), rank.rank), now if is_running and _runs(rank) else None),
        }
        for rank in record.ranks[:most]
    ]


def _runs(rank: RankRecord) -> bool:
    return rank.state == "running"


def _numbers(table: SeriesTable, source: Source, now: float | None) -> Row:
    """Return the last numbers of a rank; `now` where it runs, and so may be silent."""
    pace = step_time_of(table.of(source))
    silent = None if now is None else seconds_silent(table.of(source), pace, now)
    return {
        "values": {name: number(value) for name, value in table.last(source).items()},
        "pace": None if pace is None else number(pace),
        "silent": None if silent is None else round(silent),
    }


def describe_progress(table: SeriesTable, record: RunRecord, is_silent: bool) -> Row | None:
    """Return how far a running job is, by the first rank whose lines tell how far it has to go."""
    if record.state != "running":
        return None
    for rank in record.ranks:
        source = Source(len(record.attempts), rank.rank)
        extent = find_extent(table.last(source))
        if extent is not None:
            left = None if is_silent else extent.seconds_left(step_time_of(table.of(source)))
            return {"share": extent.share, "of": extent.words.strip(), "left": left}
    return None


def silence_of(ranks: Sequence[Mapping[str, Any]]) -> int | None:
    """Return for how many seconds no rank that runs has told a step, where that is long."""
    told = [rank for rank in ranks if rank["state"] == "running" and {*STEP_NAMES, "loss"} & rank["values"].keys()]
    silent = [rank["silent"] for rank in told if rank["silent"] is not None]
    return min(silent) if silent and len(silent) == len(told) else None
