"""The record of a run that has ended, with what only Kubernetes knows about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable

OVER = ("succeeded", "failed", "stopped", "lost")
_STOPPED = (130, 143)

Record = dict[str, Any]


def read_record(content: bytes) -> Record | None:
    """The record in a file that a pod has written; None where it is no object of JSON."""
    try:
        raw = parse_json(content)
    except Unreadable:
        return None
    return raw if isinstance(raw, dict) else None


def lost_host(record: Record) -> str:
    """The host that the launcher has lost; empty where it ended for another reason."""
    verdict = record.get("verdict")
    is_lost = isinstance(verdict, dict) and verdict.get("cause") == "host lost"
    return str(verdict.get("host") or "") if is_lost and verdict else ""


def concluded(record: Record, exit_code: int, ending: Mapping[str, Any] | None, last_lines: str) -> Record:
    """The record of a run that is over: what its launcher has written, and why Kubernetes ended a pod."""
    state = record.get("state")
    if state not in OVER:  # the launcher ended before the run began, or was ended itself
        state = "succeeded" if exit_code == 0 else "stopped" if exit_code in _STOPPED else "failed"
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        record = {**record, "state": state, "exit_code": exit_code, "ended": now}
        if state == "failed" and ending is None:
            record["verdict"] = {"cause": "not ready", "summary": last_lines, "exit_code": exit_code}
    if ending is None or state == "succeeded":
        return record
    known = record.get("verdict")
    verdict = {**(known if isinstance(known, dict) else {}), **ending}
    return {**record, "state": "failed", "verdict": verdict}
