"""The last loss of a run, from the end of its metrics.jsonl: quick enough for a list of many runs."""

from __future__ import annotations

import os
from pathlib import Path

from mslaunch.documents.limits import open_file
from mslaunch.metrics.rows import Number, read_row

READ = 1 << 16
"""Bytes of the file's end that are read."""
MOST_ROWS = 20
"""How many rows are tried, should some of them be no rows."""


def last_loss(path: Path) -> Number | None:
    """Return the last loss near the end of the file: of rank 0, else of the last rank that tells one."""
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - READ))
            lines = [line for line in file.read(READ).split(b"\n") if b'"loss":' in line]
    except OSError:
        return None
    of_first = [line for line in lines if b'"rank":0,' in line]
    for line in reversed((of_first or lines)[-MOST_ROWS:]):
        if (row := read_row(line)) and (loss := row.last("loss")) is not None:
            return loss
    return None
