"""The document of a run: everything that a page shows of it, as one JSON value of bounded size."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mslaunch import layout
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import MslaunchError
from mslaunch.masking import MASK, looks_secret, masked, without_credentials
from mslaunch.metrics.series import SeriesTable
from mslaunch.plan.model import Plan
from mslaunch.store import labels
from mslaunch.store.layout import RunFolder
from mslaunch.store.record import RunRecord
from mslaunch.store.run import Run
from mslaunch.ui import curves, heat, log_text, timeline
from mslaunch.ui.bounds import Bounds, bounded, is_within
from mslaunch.ui.given import describe_given
from mslaunch.ui.standing import describe_ranks, silence_of
from mslaunch.words import cut_middle, plain

MOST_HOSTS = 256
MOST_LOGS = 1024
MOST_ATTEMPTS = 50
MOST_LABELS = 50
LONGEST = 1e8  # seconds of a job: what is said to have been earlier was not
SHORT = 1000  # characters of a text that is no traceback and no configuration
LOG_OF_THE_FAILED = 64_000
_KEY = re.compile(r"^(\s*(?:- )?)([\w.-]+)(:\s+)(\S.*)$", re.MULTILINE)

Document = dict[str, Any]


def make_document(run: Run, table: SeriesTable, now: float, bounds: Bounds, ranks: Sequence[int] = ()) -> Document:
    """Return what a page shows of a run; `ranks` are to have curves of their own."""
    record = run.record
    start = datetime.fromisoformat(record.started).timestamp()
    events = list(timeline.read_events(run.folder.events))
    start = min([start, *_first_times(table, events, start)])
    wanted = (*ranks, 0, *_failed(record))
    standing = describe_ranks(table, record, now, bounds.spans)
    return {
        "name": plain(run.name),
        "folder": plain(str(run.path)),
        "made": now,
        "start": start,
        "record": _record(record, bounds),
        "labels": describe_labels(run.folder),
        "attempt": len(record.attempts),
        "curves": curves.make_curves(table, start, bounds, wanted),
        "ranks": standing,
        "silent": silence_of(standing),
        "given": describe_given(run.folder),
        "heat": heat.make_heat(table, start, bounds),
        "timeline": timeline.make_timeline(events, start, bounds),
        "events": timeline.describe_events(events, start, bounds.events),
        "event_count": timeline.count_events(events),
        "plan": _plan(run),
        "config": _config(run.path / layout.CONFIG, bounds.texts),
        "logs": _logs(run, record, bounds) if bounds.log_bytes else [],
    }


def _first_times(table: SeriesTable, events: Sequence[timeline.Event], start: float) -> list[float]:
    """When the first things happened: an earlier attempt began before what the record calls the start."""
    series = (next(iter(table.of(source).values()), None) for source in table.sources)
    told = [one.time[0] for one in series if one]
    dated = (event.get("time") for event in events[:50])
    found = [*told, *(float(time) for time in dated if isinstance(time, int | float))]
    return [time for time in found if time > start - LONGEST]


def _failed(record: RunRecord) -> tuple[int, ...]:
    verdict = record.verdict
    return () if verdict is None else (*(() if verdict.rank is None else (verdict.rank,)), *verdict.also_failed)


def _record(record: RunRecord, bounds: Bounds) -> Document:
    """Return run.json with texts of bounded length, and without the ranks, which have a table of their own."""
    raw = record.to_dict()
    del raw["ranks"]
    verdict, attempts = raw.pop("verdict"), raw.pop("attempts")[-MOST_ATTEMPTS:]
    return {
        **bounded(raw, SHORT),
        "verdict": bounded(verdict, bounds.texts),
        "attempts": [bounded({**attempt, "resume": None}, SHORT) for attempt in attempts],
    }


def describe_labels(folder: RunFolder) -> Document:
    """Return the tags and the newest notes of a run."""
    found = labels.read(folder)
    notes = [[note.time, note.text] for note in found.notes[-MOST_LABELS:]]
    return {"tags": bounded(found.tags, SHORT, MOST_LABELS), "notes": bounded(notes, SHORT, MOST_LABELS)}


def _plan(run: Run) -> Document:
    """Return what a person may want to know of the plan; the whole of it is in plan.json."""
    try:
        plan = run.plan
    except MslaunchError as error:
        return {"error": plain(str(error))}
    first = next(iter(plan.workers), None)
    found = {
        "command": shlex.join(first.argv) if first else "",
        "program": plan.script,
        "folder": plan.job_dir,
        "submitted_from": plan.submit_dir,
        "method": plan.method,
        "transport": plan.transport,
        "device_target": plan.device_target,
        "scheduler": plan.master,
        "hosts": _hosts(plan),
        "settings": dict(plan.sources),
        "environment": {name: masked(name, value) for name, value in plan.env.items()},
        "notes": list(plan.notes),
    }
    return {name: bounded(value, SHORT) for name, value in found.items()}


def _hosts(plan: Plan) -> list[Document]:
    shown = plan.hosts[:MOST_HOSTS]
    return [{"name": host.name, "address": host.address, "devices": list(host.devices)} for host in shown]


def _config(path: Path, most: int) -> str:
    """Return the configuration of the script; secrets, by their keys, are masked, since a report travels."""
    with suppress(OSError, Unreadable):
        if not is_within(path.parent, path):
            return ""
        text = cut_middle(read_text(path, errors="replace", only_files=True), most)
        lines = map(plain, without_credentials(text).split("\n"))
        return _KEY.sub(_masked, "\n".join(lines))
    return ""


def _masked(found: re.Match[str]) -> str:
    space, key, colon, value = found.groups()
    return f"{space}{key}{colon}{MASK if looks_secret(key) else value}"


def _logs(run: Run, record: RunRecord, bounds: Bounds) -> list[Document]:
    """Return the ends of the logs; that of a rank that failed is longer than the others."""
    failed = set(_failed(record)[:4])
    ranks = [rank.rank for rank in record.ranks]
    shown = sorted({*failed, *ranks[:MOST_LOGS]} & set(ranks))
    each = min(32_000, (bounds.log_bytes - len(failed) * LOG_OF_THE_FAILED) // max(1, len(shown)))
    logs = [_log(run, rank, LOG_OF_THE_FAILED if rank in failed else each) for rank in shown]
    scheduler = log_text.window(run.path, run.folder.scheduler_log, None, 8_000, True)
    return [*logs, *([{"rank": None, **_ends(scheduler)}] if scheduler.size else [])]


def _log(run: Run, rank: int, most: int) -> Document:
    return {"rank": rank, **_ends(log_text.window(run.path, run.folder.log(rank), None, most, True))}


def _ends(found: log_text.Window) -> Document:
    return {"start": found.start, "size": found.size, "lines": list(found.lines)}
