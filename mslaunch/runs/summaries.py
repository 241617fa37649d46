"""What a list shows of each run, without reading a thousand records every time.

Records of runs that are over do not change. A summary of each is kept in a small file below the XDG state folder, with
the size and time of the record that it was made of. The file is a convenience: whatever is wrong with it is no error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import GenericAlias
from typing import Any, get_type_hints

from mslaunch.diagnose.verdict import Verdict, signal_name
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.typed import Mismatch, reader_of
from mslaunch.errors import RecordUnreadable
from mslaunch.runs.liveness import current, job_of
from mslaunch.runs.metrics_file import last_loss
from mslaunch.runs.paths import RunFolder
from mslaunch.runs.places import index_path
from mslaunch.runs.record import ENDED, RunRecord, Time
from mslaunch.runs.writing import write_atomically
from mslaunch.shared import layout
from mslaunch.text import first_line

FEW = 20
"""Runs whose records are read as quickly as a file about them."""
LARGEST = 64 << 20
_VERSION = 4
_EXCEPTION = re.compile(r"(?:[\w.]{0,200}\.)?(\w{1,60})(?=:|$)")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a list shows of a run."""

    run_id: str
    state: str
    started: Time
    ended: Time | None
    world_size: int
    method: str
    transport: str
    script: str
    attempts: int
    """How many there were before the last one."""
    exit_code: int | None
    seconds: float
    """How long it has taken, up to its end or up to now."""
    bytes: int | None
    """How much room the run's folder took when it ended."""
    why: str = ""
    """Why it failed, or why its result is doubtful, in a word or two."""
    loss: float | None = None
    """The last loss that it told."""


_FIELDS = RunSummary.__slots__
_ROW = reader_of(GenericAlias(tuple, (str, *get_type_hints(RunSummary, include_extras=True).values())))
"""Reads a row of the file: the key of a record, and the fields of its summary."""


def summarize(record: RunRecord, loss: float | None) -> RunSummary:
    """Return what a list shows of a record and of the last loss of its run."""
    made_here = ("attempts", "seconds", "why", "loss")
    own = {name: getattr(record, name) for name in _FIELDS if name not in made_here}
    seconds = record.seconds_taken(datetime.now().astimezone())
    why = _name_cause(record.verdict) if record.verdict else ", ".join(one.kind for one in record.warnings)
    return RunSummary(**own, attempts=len(record.attempts), seconds=seconds, why=why, loss=loss)


def _name_cause(verdict: Verdict) -> str:
    """Return the cause of a failure, more closely where one word tells it: the exception, the signal."""
    if verdict.cause == "signal" and verdict.signal:
        return signal_name(verdict.signal)
    named = _EXCEPTION.match(verdict.summary) if verdict.cause == "exception" else None
    return named[1] if named else first_line(verdict.cause, 30)


def read_summaries(
    runs_dir: Path, wanted: Iterable[RunFolder], everything: Sequence[RunFolder]
) -> list[RunSummary | RecordUnreadable]:
    """Return how some of all runs of a folder stand now, or why that cannot be read, in their order."""
    path = _path(runs_dir) if len(everything) > FEW else None
    known = _load(path) if path else {}
    new: dict[str, list[Any]] = {}
    answers: list[RunSummary | RecordUnreadable] = []
    for folder in wanted:
        name, key = _place(folder), _key(folder) if path else ""
        row = known.get(name)
        if row is not None and row[0] == key:
            answers.append(RunSummary(*row[1:]))
            continue
        try:
            found = current(folder)
        except RecordUnreadable as error:
            answers.append(error)
            continue
        answers.append(summary := summarize(found, last_loss(folder.metrics)))
        if path and key == _key(folder) and _is_final(folder, found):
            new[name] = [key, *(getattr(summary, name) for name in _FIELDS)]
    if path and new:
        there = {_place(folder) for folder in everything}
        _save(path, {name: row for name, row in {**known, **new}.items() if name in there})
    return answers


def _place(folder: RunFolder) -> str:
    """The run's place among others: a sweep's have its name before theirs."""
    return f"{folder.path.parent.name}/{folder.path.name}"


def _is_final(folder: RunFolder, record: RunRecord) -> bool:
    """Tell whether a run that is over stays as it is: a queue may start its own again, and a lost one may be found."""
    return record.state in ENDED and record.state != "lost" and job_of(folder, record) is None


def _key(folder: RunFolder) -> str:
    try:
        found = os.stat(f"{folder.path}/{layout.RECORD}")  # noqa: PTH116 -- a third of the time
    except OSError:
        return ""
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def _path(runs_dir: Path) -> Path | None:
    index = index_path()
    name = hashlib.sha256(os.fsencode(runs_dir.resolve())).hexdigest()[:32]
    return index.with_name("summaries") / f"{name}.json" if index else None


def _load(path: Path) -> dict[str, list[Any]]:
    with suppress(OSError, Unreadable, ValueError, RecursionError):
        found = json.loads(read_text(path, LARGEST, only_files=True))
        if isinstance(found, dict) and found.get("version") == _VERSION and isinstance(found.get("runs"), dict):
            return {name: row for name, row in found["runs"].items() if _is_row(row)}
    return {}


def _is_row(row: Any) -> bool:
    try:
        _ROW.read(row)
    except Mismatch:
        return False
    return row[2] in ENDED


def _save(path: Path, rows: Mapping[str, list[Any]]) -> None:
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"version": _VERSION, "runs": rows}, separators=(",", ":")))
