"""The document of a run: everything that a page shows of it, as one JSON value of bounded size."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, open_file, read_text
from mslaunch.errors import MslaunchError
from mslaunch.masking.documents import mask_document, mask_outline, mask_texts, mask_values
from mslaunch.masking.free_text import mask_text
from mslaunch.metrics.progress import find_extent, seconds_silent, step_time_of
from mslaunch.metrics.rows import Source
from mslaunch.metrics.series import STEP_NAMES, SeriesTable
from mslaunch.run import labels
from mslaunch.run.paths import RunFolder, SweepFolder
from mslaunch.run.record import RunRecord
from mslaunch.run.run import Run
from mslaunch.run.sweep_record import read as read_sweep
from mslaunch.shared import layout
from mslaunch.shared.secret_names import MASK
from mslaunch.text import cut_line, cut_middle, plain
from mslaunch.ui import curves, log_text
from mslaunch.ui.bounds import Bounds, bounded, is_within, number
from mslaunch.ui.curves import make_heat

MOST_BYTES = 64 << 20
LONGEST_LINE = 1 << 20
LONGEST_TEXT = 300
LONGEST_EVENT = 100 * LONGEST_TEXT
_POINTS = {
    "started": "started",
    "imported": "imported",
    "joining": "joining",
    "joined": "joined",
    "error": "failed",
    "exited": "ended",
}
"""Which events are points of a rank's span, and what the document calls them."""
_LEFT_OUT = ("ev", "time", "host", "rank", "role", "schema_version")
_NAMES = {
    "hello": "agent started",
    "import": "imports MindSpore",
    "imported": "has imported MindSpore",
    "joining": "enters init()",
    "joined": "has left init()",
    "done": "script has ended",
    "error": "exception",
    "exited": "process has ended",
    "abandoned": "agent ends its ranks",
    "stuck": "cannot be ended",
    "idle": "nothing left on the host",
    "agent-note": "note",
    "unknown": "unknown event",
}
"""What people call events; others have their own names, with blanks for dashes."""
_WORDS: dict[str, Callable[[Any], str]] = {
    "message": str,
    "why": lambda value: value if isinstance(value, str) else f"why {_value(value)}",
    "code": lambda value: f"exit code {_value(value)}",
    "asked": lambda value: "as asked" if value is True else "",
    "out_of_memory": lambda value: "out of memory" if value is True else "",
    "crashed": lambda value: f"crashed by signal {_value(value)} after its end",
    "child": lambda value: f"after its process {_value(value)}",
    "child_signal": lambda value: f"was killed by signal {_value(value)}",
    "kernel": str,
    "attempt": lambda value: f"attempt {value + 1}" if type(value) is int else f"attempt {_value(value)}",
}
"""How fields are said; attempts are counted from 1 where people read them."""

Event = dict[str, Any]


def read_events(path: Path) -> Iterator[Event]:
    """Yield the events of a file; a line that is none is left out."""
    try:
        with open_file(path) as file:
            read = 0
            while read < MOST_BYTES and (line := file.readline(LONGEST_LINE)):
                read += len(line)
                try:
                    event = parse_json(line)
                except ValueError:
                    continue
                if isinstance(event, dict) and isinstance(event.get("ev"), str):
                    yield event
    except OSError:
        return


def make_timeline(events: list[Event], start: float, bounds: Bounds) -> dict[str, Any]:
    """Return the spans of the ranks, and when the job was started again or stopped."""
    spans: dict[tuple[int, int], Event] = {}
    marks: list[tuple[float, str]] = []
    attempt, stopping = 0, False
    for event in events:
        name, when, rank = event["ev"], _time(event, start), event.get("rank")
        if name == "restart":
            attempt = event["attempt"] if isinstance(event.get("attempt"), int) else attempt + 1
            stopping = False
        if name in ("restart", "stopping") and when is not None:
            stopping = stopping or name == "stopping"
            marks.append((when, name))
        if name not in _POINTS or when is None or type(rank) is not int or event.get("role", "worker") != "worker":
            continue
        span = spans.setdefault((rank, attempt), {"rank": rank, "attempt": attempt})
        span.setdefault(_POINTS[name], when)
        if name == "exited":
            span |= {"code": _whole(event.get("code")), "signal": _whole(event.get("signal"))}
            span["stopped"] = stopping and "failed" not in span and span["code"] != 0
    return {"spans": _spread(list(spans.values()), bounds.spans), "marks": marks[:100], "ranks": len(spans)}


def _spread(spans: list[Event], most: int) -> list[Event]:
    """Keep those that failed, and others evenly."""
    spans.sort(key=lambda span: (span["rank"], span["attempt"]))
    if len(spans) <= most:
        return spans
    failed = [span for span in spans if "failed" in span][: most // 2]
    left = most - len(failed)
    spread = [spans[at * len(spans) // left] for at in range(left)]
    chosen = {(span["rank"], span["attempt"]): span for span in (*failed, *spread)}
    return [chosen[key] for key in sorted(chosen)]


def describe_events(events: list[Event], start: float, most: int, mask: Callable[[str], str]) -> list[list[Any]]:
    """Return events as time, name, who and words without secrets: the first ones and the last ones."""
    events = [event for event in events if event["ev"] != "schema"]
    chosen = events if len(events) <= most else [*events[: most // 4], *events[-(most - most // 4) :]]
    rows = []
    for event in chosen:
        name = _NAMES.get(event["ev"]) or plain(event["ev"].replace("-", " "))[:40]
        rows.append([_time(event, start), name, _who(event), _words(event, mask)])
    return rows


def _who(event: Event) -> str:
    rank, role, host = event.get("rank"), event.get("role"), event.get("host")
    name = f"rank {rank}" if type(rank) is int else role if isinstance(role, str) else ""
    return plain(" on ".join(part for part in (name, host) if part and isinstance(part, str)))[:120]


def _words(event: Event, mask: Callable[[str], str]) -> str:
    if isinstance(event.get("text"), str):
        return cut_line(plain(mask(event["text"][:LONGEST_EVENT])), LONGEST_TEXT)
    rest = {name: value for name, value in event.items() if name not in _LEFT_OUT and value is not None}
    parts = (_WORDS[name](value) if name in _WORDS else f"{name} {_value(value)}" for name, value in rest.items())
    return cut_line(plain(mask(", ".join(filter(None, parts))[:LONGEST_EVENT])), LONGEST_TEXT)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[: 2 * LONGEST_TEXT]


def _time(event: Event, start: float) -> float | None:
    when = event.get("time")
    return round(when - start, 3) if isinstance(when, int | float) and not isinstance(when, bool) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


Row = dict[str, Any]
LONGEST_GIVEN = 300
LARGEST_PLAN = 4 << 20  # of a thousand ranks; that of more is not read for a list


def read_arguments(folder: RunFolder, secrets: Collection[str]) -> str:
    """Return the arguments of a run's script as they were typed, secrets masked; nothing where none are known."""
    try:
        raw = parse_json(read_text(folder.plan, LARGEST_PLAN, only_files=True))
    except (OSError, Unreadable):
        return ""
    program = raw.get("program") if isinstance(raw, dict) else None
    args = program.get("args") if isinstance(program, dict) else None
    texts = [argument for argument in args if isinstance(argument, str)] if isinstance(args, list) else []
    return _short(
        " ".join(argument if MASK in argument else shlex.quote(argument) for argument in mask_values(texts, secrets))
    )


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST_GIVEN else f"{text[:LONGEST_GIVEN]} …"


def read_sweep_values(path: Path) -> dict[str, str]:
    """Return what each run of a sweep's folder was given, by its id: `lr=0.1 seed=3`."""
    try:
        sweep = read_sweep(SweepFolder(path))
    except MslaunchError:
        return {}
    labels: dict[str, str] = {}
    for run_id, combination in zip(sweep.run_ids, sweep.combinations, strict=True):
        pairs = ((key, combination.typed[key]) for key in combination.varied or combination.typed)
        labels[run_id] = _short(" ".join(f"{key}={mask_values(value, (), key)}" for key, value in pairs))
    return labels


def describe_ranks(table: SeriesTable, record: RunRecord, now: float, most: int) -> list[Row]:
    """Return how each rank stands, with its last numbers."""
    rows = []
    for rank in record.ranks[:most]:
        row = {"rank": rank.rank, "host": plain(rank.host), "device": rank.device_id, "pid": rank.pid}
        row |= {"state": rank.state, "code": rank.exit_code, "signal": rank.signal}
        runs = record.state == rank.state == "running"
        rows.append(row | _numbers(table, Source(record.attempt_of(rank.group), rank.rank), now if runs else None))
    return rows


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
        source = Source(record.attempt_of(rank.group), rank.rank)
        extent = find_extent(table.last(source))
        if extent is not None:
            left = None if is_silent else extent.seconds_left(step_time_of(table.of(source)))
            return {"share": extent.share, "of": extent.words.strip(), "left": left}
    return None


def silence_of(ranks: Sequence[Mapping[str, Any]]) -> int | None:
    """Return for how many seconds no rank that runs has told a step, where that is long."""
    telling = [rank for rank in ranks if rank["state"] == "running" and {*STEP_NAMES, "loss"} & rank["values"].keys()]
    silent = [rank["silent"] for rank in telling if rank["silent"] is not None]
    return min(silent) if silent and len(silent) == len(telling) else None


MOST_HOSTS = 256
MOST_LOGS = 1024
MOST_ATTEMPTS = 50
MOST_LABELS = 50
LONGEST = 1e8  # seconds of a job: what is said to have been earlier was not
SHORT = 1000  # characters of a text that is no traceback and no configuration
LOG_OF_THE_FAILED = 64_000
LONGEST_MASKED = 20_000  # characters of a short text that are masked, of which fewer are shown
LARGEST_PARSED = 500_000  # characters of a configuration; a larger one is masked line by line

Document = dict[str, Any]


def make_document(
    run: Run, table: SeriesTable, now: float, bounds: Bounds, secrets: Collection[str], ranks: Sequence[int] = ()
) -> Document:
    """Return what a page shows of a run; `known` are its secrets, `ranks` are to have curves of their own."""
    record = run.record
    start = datetime.fromisoformat(record.started).timestamp()
    events = list(read_events(run.folder.events))
    start = min([start, *_first_times(table, events, start)])
    first_ranks = (*ranks, 0, *_failed(record))
    standing = describe_ranks(table, record, now, bounds.spans)
    silent = silence_of(standing)
    sweep = run.folder.sweep
    sweep_values = read_sweep_values(sweep.path) if sweep else {}
    return {
        "name": plain(run.name),
        "folder": plain(str(run.path)),
        "made": now,
        "start": start,
        "record": _record(record, bounds, secrets),
        "labels": describe_labels(run.folder, secrets),
        "attempt": record.attempt_of(),
        "curves": curves.make_curves(table, start, bounds, first_ranks),
        "ranks": standing,
        "silent": silent,
        "progress": describe_progress(table, record, silent is not None),
        "given": {"sweep": sweep_values.get(run.run_id, ""), "arguments": read_arguments(run.folder, secrets)},
        "heat": make_heat(table, start, bounds),
        "timeline": make_timeline(events, start, bounds),
        "events": describe_events(events, start, bounds.events, partial(mask_text, secrets=secrets)),
        "event_count": sum(1 for event in events if event["ev"] != "schema"),
        "plan": _plan(run, secrets),
        "config": _config(run.path / layout.CONFIG, bounds.texts, secrets),
        "logs": _logs(run, record, bounds, secrets) if bounds.log_bytes else [],
    }


def _first_times(table: SeriesTable, events: Sequence[Event], start: float) -> list[float]:
    """When the first things happened: an earlier attempt began before what the record calls the start."""
    series = (next(iter(table.of(source).values()), None) for source in table.sources)
    series_times = [points.time[0] for points in series if points]
    dated = (event.get("time") for event in events[:50])
    times = [*series_times, *(float(time) for time in dated if isinstance(time, int | float))]
    return [time for time in times if time > start - LONGEST]


def _failed(record: RunRecord) -> tuple[int, ...]:
    verdict = record.verdict
    return () if verdict is None else (*(() if verdict.rank is None else (verdict.rank,)), *verdict.also_failed)


def _record(record: RunRecord, bounds: Bounds, secrets: Collection[str]) -> Document:
    """Return run.json with texts of bounded length, and without the ranks, which have a table of their own."""
    raw = record.to_dict()
    del raw["ranks"]
    verdict, attempts = raw.pop("verdict"), raw.pop("attempts")[-MOST_ATTEMPTS:]
    return {
        **_shown(raw, SHORT, secrets),
        "verdict": _shown(verdict, bounds.texts, secrets),
        "attempts": [_shown({**attempt, "resume": None}, SHORT, secrets) for attempt in attempts],
    }


def _shown(value: Any, characters: int, secrets: Collection[str]) -> Any:
    """Return a value with bounded texts; they are masked before they are cut, since half a secret is not known."""
    return bounded(mask_texts(bounded(value, max(2 * characters, LONGEST_MASKED)), secrets), characters)


def describe_labels(folder: RunFolder, secrets: Collection[str]) -> Document:
    """Return the tags and the newest notes of a run, without its secrets."""
    run_labels = labels.read(folder)
    notes = [[note.time, note.text] for note in run_labels.notes[-MOST_LABELS:]]
    return {"tags": _shown(run_labels.tags[:MOST_LABELS], SHORT, secrets), "notes": _shown(notes, SHORT, secrets)}


def _plan(run: Run, secrets: Collection[str]) -> Document:
    """Return what a person may want to know of the plan; the whole of it is in plan.json."""
    try:
        plan = run.plan
    except MslaunchError as error:
        return {"error": plain(str(error))}
    first = next(iter(plan.workers), None)
    hosts = plan.hosts[:MOST_HOSTS]
    facts = {
        "command": shlex.join(mask_values(first.argv, secrets)) if first else "",
        "program": plan.script,
        "folder": plan.job_dir,
        "submitted_from": plan.submit_dir,
        "method": plan.method,
        "transport": plan.transport,
        "device_target": plan.device_target,
        "scheduler": plan.master,
        "hosts": [{"name": host.name, "address": host.address, "devices": list(host.devices)} for host in hosts],
        "settings": dict(plan.sources),
        "environment": mask_values(plan.env, secrets),
        "notes": list(plan.notes),
    }
    return {name: _shown(value, SHORT, secrets) for name, value in facts.items()}


def _config(path: Path, most: int, secrets: Collection[str]) -> str:
    """Return the configuration of the script without its secrets, since a report travels."""
    with suppress(OSError, Unreadable):
        if not is_within(path.parent, path):
            return ""
        text = read_text(path, errors="replace", only_files=True)
        if len(text) <= LARGEST_PARSED:
            return str(bounded(mask_document(path.name, text, secrets), most))
        return str(bounded(mask_outline(cut_middle(text, 2 * most), secrets), most))
    return ""


def _logs(run: Run, record: RunRecord, bounds: Bounds, secrets: Collection[str]) -> list[Document]:
    """Return the ends of the logs without secrets; that of a rank that failed is longer than the others."""
    failed = set(_failed(record)[:4])
    ranks = [rank.rank for rank in record.ranks]
    chosen = sorted({*failed, *ranks[:MOST_LOGS]} & set(ranks))
    each = min(32_000, (bounds.log_bytes - len(failed) * LOG_OF_THE_FAILED) // max(1, len(chosen)))
    end_of = partial(log_text.window, run.path, at=None, with_rest=True, mask=partial(mask_text, secrets=secrets))
    sizes = {rank: LOG_OF_THE_FAILED if rank in failed else each for rank in chosen}
    logs = [{"rank": rank, **_ends(end_of(run.folder.log(rank), most=most))} for rank, most in sizes.items()]
    scheduler = end_of(run.folder.scheduler_log, most=8_000)
    return [*logs, *([{"rank": None, **_ends(scheduler)}] if scheduler.size else [])]


def _ends(window: log_text.LogWindow) -> Document:
    return {"start": window.start, "size": window.size, "lines": list(window.lines)}
