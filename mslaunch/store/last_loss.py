"""The last loss of a run, from the end of its metrics.jsonl: quick enough for a list of many runs."""

from __future__ import annotations

import stat
from pathlib import Path

from mslaunch.metrics.rows import Number, Row, read_row

READ = 1 << 16
"""Bytes of the file's end that are read."""
MOST_ROWS = 200


def last_loss(path: Path) -> Number | None:
    """Return the last loss of the lowest rank that tells one near the end of the file, of the last attempt."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return None
        with path.open("rb") as file:
            file.seek(max(0, found.st_size - READ))
            lines = [line for line in file.read(READ).split(b"\n") if b'"loss"' in line]
    except OSError:
        return None
    rows = [row for line in lines[-MOST_ROWS:] if (row := read_row(line)) and row.last("loss") is not None]
    return max(rows, key=_place).last("loss") if rows else None


def _place(row: Row) -> tuple[int, int, float]:
    return row.source.attempt, -(row.source.rank or 0), row.time
