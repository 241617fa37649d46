"""The record of a run that has ended, with what only Kubernetes knows about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import ExitCode

OVER = ("succeeded", "failed", "stopped", "lost")
_STOPPED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
_SHOWN = 3

Record = dict[str, Any]


def read_record(content: bytes) -> Record | None:
    """The record in a file that a pod has written; None where it is no object of JSON."""
    try:
        raw = parse_json(content)
    except Unreadable:
        return None
    return raw if isinstance(raw, dict) else None


def blamed_host(record: Record) -> tuple[str, bool]:
    """The host that the launcher's verdict names, and whether it was lost."""
    verdict = record.get("verdict")
    if not isinstance(verdict, dict):
        return "", False
    host = str(verdict.get("host") or "")
    return host, bool(host) and verdict.get("cause") == "host lost"


def describe_missing(missing: Mapping[str, int]) -> str:
    """Say which bytes never came; empty where all did."""
    if not missing:
        return ""
    names = [f"{count} bytes of {name}" for name, count in sorted(missing.items())]
    more = f" and of {len(names) - _SHOWN} other files" if len(names) > _SHOWN else ""
    return (
        f"missing here: {', '.join(names[:_SHOWN])}{more}. The node had rotated the log of the launcher's pod before "
        "they were read. Use launch.kubernetes.runs_claim for jobs that print much."
    )


def concluded(record: Record, exit_code: int, ending: Mapping[str, Any] | None, last_lines: str) -> Record:
    """The record of a run that is over: what its launcher has written, and why Kubernetes ended a pod."""
    state = record.get("state")
    now = _iso(datetime.now(timezone.utc))
    if state not in OVER:  # the launcher ended before the run began, or was ended itself
        state = _state_of(exit_code)
        record = {**record, "state": state, "exit_code": exit_code, "ended": now}
        if state == "failed" and ending is None:
            record["verdict"] = {"cause": "not ready", "summary": last_lines, "exit_code": exit_code}
    record = {**record, "ranks": _ended_ranks(record, record.get("ended") or now)}
    if ending is None or state == "succeeded":
        return record
    return {**record, "state": "failed", "verdict": {**_same_host(record.get("verdict"), ending), **ending}}


def _state_of(exit_code: int) -> str:
    if exit_code in _STOPPED:
        return "stopped"
    return "failed" if exit_code else "succeeded"


def _ended_ranks(record: Record, ended: str) -> list[Record]:
    """The ranks of a run that is over: all have ended with it, also those whose end nobody has seen."""
    rows = _rank_rows(record)
    for row in rows:
        if not row.get("ended"):
            row["ended"] = ended
            row["stopped"] = record["state"] == "stopped" and bool(row.get("started"))
    return rows


def _rank_rows(record: Record) -> list[Record]:
    ranks = record.get("ranks")
    return [dict(row) for row in ranks if isinstance(row, dict)] if isinstance(ranks, list) else []


def with_starts(record: Record, events: Iterable[bytes]) -> Record:
    """The record, with the ranks that have started according to the events: a launcher writes those sooner."""
    starts = _starts(events)
    rows = _rank_rows(record)
    for row in rows:
        if not row.get("started"):
            row.update(starts.get(str(row.get("rank")), {}))
    return {**record, "ranks": rows}


def _starts(events: Iterable[bytes]) -> dict[str, Record]:
    """When each rank of the last attempt started, and its process."""
    starts: dict[str, Record] = {}
    for line in events:
        if b'"started"' not in line and b'"restart"' not in line:
            continue
        event = read_record(line) or {}
        if event.get("ev") == "restart":
            starts.clear()
        if event.get("ev") == "started" and event.get("role") == "worker":
            with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
                started = datetime.fromtimestamp(float(event["time"]), timezone.utc)
                starts[str(int(event["rank"]))] = {"pid": int(event["pid"]), "started": _iso(started)}
    return starts


def _iso(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds")


def _same_host(verdict: Any, ending: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the launcher's verdict says of the pod that Kubernetes ended; of another one, the exit code only."""
    known = verdict if isinstance(verdict, dict) else {}
    if ending.get("host") in (None, known.get("host")):
        return known
    return {"exit_code": known.get("exit_code")}
