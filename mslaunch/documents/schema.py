"""The version of the records of a run, and the refusal of records that a newer mslaunch has written."""

from __future__ import annotations

import re
from typing import Any, Literal

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import NewerRecord

SCHEMA_VERSION = "1.5"
"""Of run.json, plan.json and events.jsonl. The first number changes when a reader of the other version would be misled,
the second when fields or events are added."""
RunStatus = Literal["queued", "running", "succeeded", "failed", "stopped", "lost"]
"""How a run stands, by its record or by the queue that it waits in."""
_VERSION = re.compile(r"([0-9]{1,9})(?:\..*)?")


def parse_record(text: str, name: str) -> dict[str, Any]:
    """Read the object in a file of a run; raise Unreadable for what is none, NewerRecord for a newer mslaunch's."""
    raw = parse_json(text)
    if not isinstance(raw, dict):
        raise Unreadable("it is not a JSON object")
    check_schema(raw.get("schema_version", SCHEMA_VERSION), name)
    return raw


def check_schema(version: object, name: str) -> None:
    """Refuse what a newer version wrote in a way that this one would misread."""
    number = _VERSION.fullmatch(str(version)[:40])
    if not number or int(number[1]) > int(SCHEMA_VERSION.partition(".")[0]):
        raise NewerRecord(name, str(version)[:40], SCHEMA_VERSION)
