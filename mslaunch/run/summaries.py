"""What a list shows of each run, without reading a thousand records every time.

Records of runs that are over do not change. A file below the XDG state folder keeps a summary of each, with the size
and time of its record. The file is a cache: anything wrong with it is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from types import GenericAlias
from typing import Any, get_type_hints

from mslaunch.diagnose.verdict import signal_name
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.schema import RunStatus
from mslaunch.documents.typed import RECORDS, Mismatch
from mslaunch.errors import RecordUnreadable
from mslaunch.run.find import index_path, list_runs
from mslaunch.run.liveness import current, job_of
from mslaunch.run.metrics_file import last_loss
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import ENDED, RunRecord, Time
from mslaunch.run.writing import write_atomically
from mslaunch.shared import layout
from mslaunch.text import first_line

FEW = 20  # runs whose records are read as quickly as a file about them
LARGEST = 64 << 20
_EXCEPTION = re.compile(r"(?:[\w.]{0,200}\.)?(\w{1,60})(?=:|$)")


def _name_cause(record: RunRecord, _: RunFolder) -> str:
    """Name the cause of a failure, by its exception or signal where it has one, or the kinds of warnings."""
    verdict = record.verdict
    if verdict is None:
        return ", ".join(warning.kind for warning in record.warnings)
    if verdict.cause == "signal" and verdict.signal:
        return signal_name(verdict.signal)
    exception = _EXCEPTION.match(verdict.summary)
    if verdict.cause == "exception" and exception:
        return exception[1]
    return first_line(verdict.cause, 30)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a list shows of a run: fields of its record, and others that `compute` makes of record and folder."""

    run_id: str
    state: RunStatus
    started: Time
    ended: Time | None
    world_size: int
    method: str
    transport: str
    script: str
    attempts: int = field(metadata={"compute": lambda record, _: record.attempt_of()})
    """How many there were before the last one."""
    exit_code: int | None
    seconds: float = field(metadata={"compute": lambda record, _: record.seconds_taken(datetime.now().astimezone())})
    bytes: int | None  # how much room the run's folder took when it ended
    why: str = field(metadata={"compute": _name_cause})
    """Why it failed, or why its result is doubtful, in a word or two."""
    loss: float | None = field(metadata={"compute": lambda _, folder: last_loss(folder.metrics)})


_FIELDS = RunSummary.__slots__
_ROW = RECORDS.reader_of(GenericAlias(tuple, (str, *get_type_hints(RunSummary, include_extras=True).values())))
"""Reads a row of the file: the key of a record, and the fields of its summary."""


def list_summaries(
    runs_dir: Path, last: int | None = None
) -> tuple[list[tuple[RunFolder, RunSummary | RecordUnreadable]], int]:
    """Return the runs of a folder, oldest first, each with its summary or why it has none; and how many are older.

    With `last`, only so many of the newest are read.
    """
    everything = list_runs(runs_dir)
    older = 0 if last is None else max(0, len(everything) - last)
    newest = everything[older:]
    return list(zip(newest, read_summaries(runs_dir, newest, everything), strict=True)), older


def sum_sizes(summaries: Iterable[RunSummary | RecordUnreadable]) -> int:
    """Return the bytes that runs took when they ended, as far as their records say."""
    return sum(summary.bytes or 0 for summary in summaries if isinstance(summary, RunSummary))


def read_summaries(
    runs_dir: Path, folders: Iterable[RunFolder], everything: Sequence[RunFolder]
) -> list[RunSummary | RecordUnreadable]:
    """Return how some of all runs of a folder stand now, or why that cannot be read, in their order."""
    path = _path(runs_dir) if len(everything) > FEW else None
    cached = _load(path) if path else {}
    new: dict[str, list[Any]] = {}
    summaries: list[RunSummary | RecordUnreadable] = []
    for folder in folders:
        name, key = _place(folder), _key(folder) if path else ""
        row = cached.get(name)
        if row is not None and row[0] == key:
            summaries.append(RunSummary(*row[1:]))
            continue
        try:
            record = current(folder)
        except RecordUnreadable as error:
            summaries.append(error)
            continue
        columns: dict[str, Any] = {}
        for column in fields(RunSummary):
            compute = column.metadata.get("compute")
            columns[column.name] = compute(record, folder) if compute else getattr(record, column.name)
        summaries.append(RunSummary(**columns))
        # A queue may start a run again, and a lost run may be found.
        is_final = record.state in ENDED and record.state != "lost" and job_of(folder, record) is None
        if path and is_final and key == _key(folder):
            new[name] = [key, *columns.values()]
    if path and new:
        places = {_place(folder) for folder in everything}
        rows = {name: row for name, row in {**cached, **new}.items() if name in places}
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"columns": _FIELDS, "runs": rows}, separators=(",", ":")))
    return summaries


def _place(folder: RunFolder) -> str:
    """Name a run within all folders of runs: its own name after that of the folder, or sweep, that holds it."""
    return f"{folder.path.parent.name}/{folder.path.name}"


def _key(folder: RunFolder) -> str:
    try:
        status = os.stat(f"{folder.path}/{layout.RECORD}")  # noqa: PTH116 -- a third of the time
    except OSError:
        return ""
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def _path(runs_dir: Path) -> Path | None:
    index = index_path()
    name = hashlib.sha256(os.fsencode(runs_dir.resolve())).hexdigest()[:32]
    return index.with_name("summaries") / f"{name}.json" if index else None


def _load(path: Path) -> dict[str, list[Any]]:
    with suppress(OSError, Unreadable, ValueError, RecursionError):
        raw = json.loads(read_text(path, LARGEST, only_files=True))
        if isinstance(raw, dict) and raw.get("columns") == list(_FIELDS) and isinstance(raw.get("runs"), dict):
            return {name: row for name, row in raw["runs"].items() if _is_row(row)}
    return {}


def _is_row(row: Any) -> bool:
    with suppress(Mismatch):
        _ROW.read(row)
        return row[2] in ENDED
    return False
