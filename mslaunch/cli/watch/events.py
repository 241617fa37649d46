"""Reads on in a run's events.jsonl: notes, who waits in init(), whether the run is being stopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mslaunch import api
from mslaunch.cli.watch.model import Happened, Note
from mslaunch.documents.json_text import parse_json

MOST_NOTES = 200


class EventReader:
    """What has happened so far, as far as the view shows it."""

    def __init__(self, path: str) -> None:
        self._follower = api.Follower(path)
        self._notes: deque[Note] = deque(maxlen=MOST_NOTES)
        self._in_init: set[int] = set()
        self._is_stopping = False

    def read(self) -> Happened:
        """Read what is new and return all of it."""
        while lines := self._follower.read():
            for line in lines:
                try:
                    event: dict[str, Any] = parse_json(line)
                    if handler := _HANDLERS.get(event["ev"]):
                        handler(self, event)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # a line that was cut by a full disk, or is not ours
        return Happened(tuple(self._notes), frozenset(self._in_init), self._is_stopping)

    def _note(self, event: Mapping[str, Any]) -> None:
        self._notes.append(Note(float(event["time"]), str(event["text"])))

    def _enter(self, event: Mapping[str, Any]) -> None:
        self._in_init.add(event["rank"])

    def _leave(self, event: Mapping[str, Any]) -> None:
        self._in_init.discard(event["rank"])

    def _stop(self, _event: Mapping[str, Any]) -> None:
        self._is_stopping = True

    def _restart(self, _event: Mapping[str, Any]) -> None:
        self._in_init.clear()
        self._is_stopping = False


_HANDLERS: dict[str, Callable[[EventReader, Mapping[str, Any]], None]] = {
    "note": EventReader._note,
    "joining": EventReader._enter,
    "joined": EventReader._leave,
    "exited": EventReader._leave,
    "stopping": EventReader._stop,
    "restart": EventReader._restart,
}
