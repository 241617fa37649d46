"""The last numbers of ranks, hosts and devices, for `mslaunch status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mslaunch.metrics.progress import short
from mslaunch.metrics.rows import Number, Source, to_json_value
from mslaunch.words import byte_count, count_words, seconds_words

Values = Mapping[str, Number]


def _of(name: str, whole: str) -> Callable[[Values], str]:
    def words(values: Values) -> str:
        if name not in values:
            return ""
        return count_words(values[name]) + (f"/{count_words(values[whole])}" if whole in values else "")

    return words


def _with(name: str, write: Callable[[Number], str]) -> Callable[[Values], str]:
    return lambda values: write(values[name]) if name in values else ""


COLUMNS: dict[str, Callable[[Values], str]] = {
    "EPOCH": _of("epoch", "epochs"),
    "STEP": _of("step", "steps"),
    "LOSS": _with("loss", short),
    "LR": _with("lr", short),
    "STEP TIME": _with("step_time", seconds_words),
    "CPU": _with("cpu", lambda number: f"{number:.2f}"),
    "MEMORY": _with("memory", lambda number: byte_count(int(number))),
}
"""What a row of the table of ranks shows of its numbers, where any rank has told them."""


def number_columns(last: Mapping[Source, Values], order: list[int]) -> list[tuple[str, ...]]:
    """Return the columns that have something to show, each with its heading, for ranks in this order."""
    of_ranks = sorted(source for source in last if source.rank is not None)
    ranks = {source.rank: last[source] for source in of_ranks}  # the last attempt is what stays
    columns = [(name, *(write(ranks.get(rank, {})) for rank in order)) for name, write in COLUMNS.items()]
    return [column for column in columns if any(column[1:])]


def last_to_json(last: Mapping[Source, Values]) -> list[dict[str, Any]]:
    """Return the last numbers of every source as plain values."""
    return [
        {**{name: value for name, value in source._asdict().items() if value is not None}, **_plain(values)}
        for source, values in last.items()
    ]


def _plain(values: Values) -> dict[str, Any]:
    return {name: to_json_value(number) for name, number in values.items()}
