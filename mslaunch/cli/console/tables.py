"""Tables in columns: whole where they are read by programs, fitted to its width on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mslaunch.text import display_width, plain

GAP = 2
LEAST = 10  # columns of the terminal that a shortened text keeps

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What may be left out of a table on a terminal, by the names of its columns."""

    dull: Mapping[str, str] = field(default_factory=dict)  # columns that are left out where all rows have this value
    optional: tuple[str, ...] = ()
    """Columns that are left out in this order where there is no room; first those with one value in all rows."""
    texts: Mapping[str, Callable[[str, int], str]] = field(default_factory=dict)
    """Columns that are shortened where there is no room, and by what."""


def terminal_width() -> int | None:
    """Return how many columns standard output has; None where it is no terminal."""
    try:
        return os.get_terminal_size(1).columns or None if os.isatty(1) else None
    except OSError:
        return None


def columns(rows: Rows, narrowing: Narrowing | None = None, width: int | None = None) -> str:
    """Align rows in columns, the first row being their names; with a `narrowing`, fit them to the terminal."""
    # Names come from files, and a file may say anything, even to a terminal.
    cells: Rows = [[plain(cell) for cell in row] for row in rows]
    room = terminal_width() if width is None else width
    if narrowing is not None and room is not None:
        cells = _narrowed(cells, narrowing, room)
    widths, text = _widths(cells), ""
    for row in cells:
        padded = (cell + " " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True))
        text += (" " * GAP).join(padded).rstrip() + "\n"
    return text


def _widths(rows: Rows) -> list[int]:
    return [max(map(display_width, column)) for column in zip(*rows, strict=True)]


def _narrowed(rows: Rows, narrowing: Narrowing, room: int) -> Rows:
    names, widths = rows[0], _widths(rows)
    values = [{row[at] for row in rows[1:]} for at in range(len(names))]
    telling = [at for at, name in enumerate(names) if values[at] != {narrowing.dull.get(name)}]
    texts = {at: narrowing.texts[names[at]] for at in telling if names[at] in narrowing.texts}
    least = {at: min(widths[at], LEAST) if at in texts else widths[at] for at in telling}
    optional = [at for name in narrowing.optional for at in telling if names[at] == name]
    fitting = _choose(least, sorted(optional, key=lambda at: len(values[at]) > 1), optional, room)
    while _total(widths[at] for at in fitting) > room:
        widest = max(texts.keys() & set(fitting), key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    return [[texts[at](row[at], widths[at]) if at in texts else row[at] for at in fitting] for row in rows]


def _choose(widths: Mapping[int, int], leave_out: Sequence[int], put_back: Sequence[int], room: int) -> list[int]:
    """Leave out columns until the rest fits; what still fits then, the last ones first, is put back."""
    chosen = dict(widths)
    for at in leave_out:
        if _total(chosen.values()) <= room:
            break
        del chosen[at]
    for at in reversed(put_back):
        if at not in chosen and _total((*chosen.values(), widths[at])) <= room:
            chosen[at] = widths[at]
    return sorted(chosen)


def _total(widths: Iterable[int]) -> int:
    return sum(width + GAP for width in widths) - GAP
