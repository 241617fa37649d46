"""A row of metrics.jsonl: the numbers of a rank, of a host or of a device at one time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mslaunch.shared.metric_values import MOST_VALUES, is_name

Number = int | float
SHORTEST_LINE, LONGEST_LINE = 20, 1 << 15  # the longest row takes half of it
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How JSON, which has no such numbers, writes them."""


class Source(NamedTuple):
    """What a row tells of: a rank of an attempt, else a device of a host, else a host."""

    attempt: int
    rank: int | None = None
    host: str | None = None
    device: int | None = None


class Spread(NamedTuple):
    """A number that varied where rows became one: the last of them, the least and the greatest finite one."""

    last: Number
    least: Number
    greatest: Number


@dataclass(frozen=True, slots=True)
class Row:
    """What was known of one source at one time; `count` rows have become this one."""

    time: float
    source: Source
    values: Mapping[str, Number | Spread]
    count: int = 1

    def last(self, name: str) -> Number | None:
        """Return the last of a value's numbers."""
        value = self.values.get(name)
        return value.last if isinstance(value, Spread) else value

    def last_values(self) -> dict[str, Number]:
        """Return the last number of each value."""
        return {name: value.last if isinstance(value, Spread) else value for name, value in self.values.items()}


def parse_number(value: Any) -> Number | None:
    """Return a number as JSON holds it; None for what is none."""
    if isinstance(value, str):
        return _WORDS.get(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if isinstance(value, float) or abs(value) < 1 << 63 else None
    return None


def parse_values(raw: Any) -> dict[str, Number]:
    """Return what of a mapping are named numbers, in bounds."""
    if not isinstance(raw, Mapping):
        return {}
    pairs = ((name, parse_number(value)) for name, value in list(raw.items())[:MOST_VALUES] if is_name(name))
    return {name: number for name, number in pairs if number is not None}


def read_row(line: str | bytes) -> Row | None:
    """Read a line of metrics.jsonl; None where it is no row: cut short, or written by somebody else."""
    if not SHORTEST_LINE <= len(line) <= LONGEST_LINE:
        return None
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    time, count = parse_number(raw.get("time")), raw.get("count", 1)
    source = _read_source(raw)
    if time is None or not math.isfinite(time) or source is None or not _is_index(count):
        return None
    values = {
        name: value
        for name, raw_value in raw.items()
        if is_name(name) and (value := _read_value(raw_value)) is not None
    }
    return Row(float(time), source, values, count)


def _read_source(raw: dict[str, Any]) -> Source | None:
    attempt, rank, host, device = (raw.get(name) for name in ("attempt", "rank", "host", "device"))
    if not _is_index(attempt) or not all(each is None or _is_index(each) for each in (rank, device)):
        return None
    if rank is not None:
        return Source(int(attempt or 0), rank)
    return Source(int(attempt or 0), None, host, device) if isinstance(host, str) else None


def _is_index(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _read_value(raw: Any) -> Number | Spread | None:
    if not isinstance(raw, list):
        return parse_number(raw)
    numbers = [number for part in raw if (number := parse_number(part)) is not None]
    return Spread(*numbers) if len(numbers) == len(Spread._fields) else None


def write_row(row: Row) -> str:
    """Write a row as a line of metrics.jsonl."""
    source = {name: value for name, value in row.source._asdict().items() if value is not None}
    count = {"count": row.count} if row.count > 1 else {}
    values = {
        name: [to_json_value(part) for part in value] if isinstance(value, Spread) else to_json_value(value)
        for name, value in row.values.items()
    }
    return json.dumps({"time": round(row.time, 3), **source, **count, **values}, separators=(",", ":")) + "\n"


def to_json_value(value: Number) -> Number | str:
    """Return a number as JSON can hold it, with the digits that matter."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value if isinstance(value, int) else float(f"{value:.7g}")


def merge(rows: Sequence[Row]) -> Row:
    """Make one row of neighbours of one source: each value with its last, its least and its greatest number."""
    if len(rows) == 1:
        return rows[0]
    numbers: dict[str, list[Number | Spread]] = {}
    for row in rows:
        for name, value in row.values.items():
            numbers.setdefault(name, []).append(value)
    values = {name: _spread(some) for name, some in numbers.items()}
    return Row(rows[-1].time, rows[0].source, values, sum(row.count for row in rows))


def _spread(values: Sequence[Number | Spread]) -> Number | Spread:
    last = values[-1].last if isinstance(values[-1], Spread) else values[-1]
    numbers: list[Number] = []
    for value in values:
        numbers += value if isinstance(value, Spread) else (value,)
    finite = [number for number in numbers if math.isfinite(number)] or [last]
    least, greatest = min(finite), max(finite)
    return last if least == greatest == last else Spread(last, least, greatest)
