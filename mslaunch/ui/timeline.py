"""What happened in a run, for a document: a span for every rank and attempt, and the events in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import open_file
from mslaunch.text import cut_line, plain
from mslaunch.ui.bounds import Bounds

MOST_BYTES = 64 << 20
LONGEST_LINE = 1 << 20
LONGEST_TEXT = 300
LONGEST_MASKED = 100 * LONGEST_TEXT
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
    return {"spans": _bounded(list(spans.values()), bounds.spans), "marks": marks[:100], "ranks": len(spans)}


def _bounded(spans: list[Event], most: int) -> list[Event]:
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
        return cut_line(plain(mask(event["text"][:LONGEST_MASKED])), LONGEST_TEXT)
    rest = {name: value for name, value in event.items() if name not in _LEFT_OUT and value is not None}
    parts = (_WORDS[name](value) if name in _WORDS else f"{name} {_value(value)}" for name, value in rest.items())
    return cut_line(plain(mask(", ".join(filter(None, parts))[:LONGEST_MASKED])), LONGEST_TEXT)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)[: 2 * LONGEST_TEXT]


def _time(event: Event, start: float) -> float | None:
    when = event.get("time")
    return round(when - start, 3) if isinstance(when, int | float) and not isinstance(when, bool) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
