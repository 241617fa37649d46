"""The table of ranks: which columns fit, and what stands in them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.cli.watch.model import RankRow
from mslaunch.metrics.rows import Number
from mslaunch.text import byte_count, count_words, display_width, plain, seconds_words, shorten, shorten_middle

LEAST = 12
"""Columns that names have in the narrowest table."""
_TO_SEPARATOR = re.compile(r".*[-._]")


def name_variants(hosts: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield what hosts can be called, from their whole names to the shortest ones."""
    names = {host: plain(host) for host in hosts}
    yield names
    without = _without_domain(names)
    yield without
    short = {host: _cut(name, _prefix(without)) for host, name in without.items()}
    yield short
    yield {host: shorten_middle(name, LEAST) for host, name in short.items()}


def _without_domain(names: dict[str, str]) -> dict[str, str]:
    """Return names without the domain that all of them have; addresses stay as they are."""
    parts = {host: name.partition(".") for host, name in names.items()}
    domains = {domain for _, _, domain in parts.values()}
    is_common = len(domains) == 1 and not any(head.isdigit() for head, _, _ in parts.values())
    return {host: head for host, (head, _, _) in parts.items()} if is_common else names


def _prefix(names: dict[str, str]) -> int:
    """Return how long the beginning is that all names have, up to a separator."""
    low, high = min(names.values()), max(names.values())
    common = next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    prefix = _TO_SEPARATOR.match(low[:common])
    return prefix.end() if prefix else 0


def _cut(name: str, start: int) -> str:
    return f"…{name[start:]}" if start > 1 else name


GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    width: int
    text: Callable[[RankRow], str]
    rank: int = 0
    """The higher, the sooner it is left out where there is no room."""
    is_left: bool = False


def number_text(value: Number | None) -> str:
    """A number in few characters."""
    if value is None:
        return ""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.4g}"


def _seconds(value: Number | None) -> str:
    return "" if value is None or not math.isfinite(value) else seconds_words(value)


def _percent(share: Number | None) -> str:
    return "" if share is None or not math.isfinite(share) else f"{share:.0f}%"


def _memory(value: Number | None) -> str:
    return "" if value is None or not 0 <= value < 1 << 60 else byte_count(int(value))


def _cores(value: Number | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.1f}"


COLUMNS = (
    Column("RANK", 6, lambda row: str(row.rank)),
    Column("HOST", LEAST, lambda row: plain(row.host), 2, is_left=True),
    Column("STATE", 9, lambda row: row.state, is_left=True),
    Column("STEP", 9, lambda row: "" if row.step is None else count_words(row.step)),
    Column("LOSS", 9, lambda row: number_text(row.loss)),
    Column("STEP TIME", 9, lambda row: _seconds(row.step_time)),
    Column("x MEDIAN", 8, lambda row: "" if row.against is None else f"{min(row.against, 9999):.2f}", 3),
    Column("CPU", 5, lambda row: _cores(row.cpu), 4),
    Column("WAIT", 5, lambda row: _percent(None if row.cpu_wait is None else 100 * row.cpu_wait), 6),
    Column("MEMORY", 8, lambda row: _memory(row.memory), 5),
    Column("DEVICE", 6, lambda row: _percent(row.device), 1),
)
_OPTIONAL = {
    "STEP": "step",
    "LOSS": "loss",
    "STEP TIME": "step_time",
    "x MEDIAN": "against",
    "CPU": "cpu",
    "WAIT": "cpu_wait",
    "MEMORY": "memory",
    "DEVICE": "device",
}
"""Columns that are left out where no rank has anything to show there, and what they show."""


def choose_columns(rows: Sequence[RankRow], width: int) -> list[Column]:
    """Return the columns that have something to show and fit into a width."""
    columns = _with_names([column for column in COLUMNS if _tells(column, rows)], {row.host for row in rows}, width)
    while len(columns) > 1 and _total(columns) > width:
        columns.remove(max(columns, key=lambda column: (column.rank, columns.index(column))))
    return columns


def _with_names(columns: list[Column], hosts: Collection[str], width: int) -> list[Column]:
    """Give names of hosts the room that is left: whole where they fit, else what tells them apart."""
    at = next((at for at, column in enumerate(columns) if column.title == "HOST"), None)
    if at is None:
        return columns
    tried = columns
    for names in name_variants(hosts):
        widest = max(len(columns[at].title), *map(display_width, names.values()))
        column = replace(columns[at], width=widest, text=_called(names))
        tried = [*columns[:at], column, *columns[at + 1 :]]
        if _total(tried) <= width:
            break
    return tried


def _called(names: Mapping[str, str]) -> Callable[[RankRow], str]:
    return lambda row: names[row.host]


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width + GAP for column in columns) - GAP


def _tells(column: Column, rows: Sequence[RankRow]) -> bool:
    if column.title == "HOST":
        return len({row.host for row in rows}) > 1
    name = _OPTIONAL.get(column.title)
    return name is None or any(getattr(row, name) is not None for row in rows)


def heading(columns: Sequence[Column]) -> str:
    return _line(columns, [column.title for column in columns])


def row_text(columns: Sequence[Column], row: RankRow) -> str:
    return _line(columns, [column.text(row) for column in columns])


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    return (" " * GAP).join(
        _placed(shorten(cell, column.width), column) for column, cell in zip(columns, cells, strict=True)
    )


def _placed(cell: str, column: Column) -> str:
    space = " " * (column.width - display_width(cell))
    return cell + space if column.is_left else space + cell
