"""What a node's own terminal shows of its ranks: the few events of the agent that a person wants to see."""

from __future__ import annotations

import json
from typing import Any

from mslaunch.shared import wire
from mslaunch.words import first_line, named_ranks

_SHOWN = tuple(
    f'{{"ev":"{name}",'.encode()
    for name in ("hello", "started", "error", "exited", "start-failed", "setup-failed", "sync-failed", "agent-note")
)
_LONGEST = 1 << 16


class RankNotes:
    """Reads an agent's stream as it passes; whatever is long, such as pieces of files, is not looked at."""

    def __init__(self) -> None:
        self.agent_pid: int | None = None
        self._left = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the notes in what has passed."""
        *records, self._left = (self._left + data).split(wire.END)
        self._left = self._left[:_LONGEST]
        notes: list[str] = []
        started: list[int] = []
        for record in records:
            if len(record) < _LONGEST and record.lstrip().startswith(_SHOWN):
                event = json.loads(record)
                if event["ev"] == "started" and event["role"] == "worker":
                    started.append(event["rank"])
                elif event["ev"] == "hello":
                    self.agent_pid = event["pid"]
                elif note := _words(event):
                    notes.append(note)
        return [*([f"{named_ranks(started)} started here"] if started else []), *notes]


def _words(event: dict[str, Any]) -> str:
    kind, rank = event["ev"], event.get("rank")
    if kind == "error":
        return f"rank {rank}: {first_line(event['message'])}"
    if kind == "exited" and event["role"] == "worker" and not event.get("asked") and event["code"] != 0:
        how = f"was killed by signal {event['signal']}" if event["signal"] else f"exited with code {event['code']}"
        return f"rank {rank} {how}"
    if kind == "start-failed":
        return f"{event['role']} could not be started: {event['why']}"
    if kind == "setup-failed":
        return "launch.setup failed"
    if kind == "sync-failed":
        return f"launch.sync failed: {first_line(event['why'])}"
    return str(event["text"]) if kind == "agent-note" else ""
