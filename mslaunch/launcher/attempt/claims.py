"""What each host may speak for and write: its own processes, their folders and their logs, as planned."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from mslaunch.launcher.attempt.event_check import Rejected
from mslaunch.plan.model import Plan
from mslaunch.shared import layout, messages
from mslaunch.shared.layout import is_collected

UNPLANNED = {("launch.setup", None), ("launch.sync", None), ("agent", None)}
"""What a host starts besides the processes of the plan, and may fail to start."""
MOST_PARTS = 32  # of a path: CANN's logs lie a few folders deep


class ProcessClaims:
    """The processes of each host in one attempt."""

    def __init__(self, plan: Plan) -> None:
        self._own: dict[str, set[tuple[str, int | None]]] = defaultdict(set)
        for host in plan.hosts:
            self._own[host.name] |= UNPLANNED
        for process in plan.processes:
            self._own[process.host].add((process.role, process.rank))

    def check(self, event: messages.Message) -> None:
        """Make sure that an event is about processes of its own host."""
        own = self._own[event["host"]]
        if "rank" in event and (event.get("role", "worker"), event["rank"]) not in own:
            what = f"{event.get('role', 'worker')} {event['rank']}"[:64]
            raise Rejected(f"sent an event ({event['ev']}) of {what}, which is not its own")
        for field_name, what in (("outputs", "outputs"), ("rows", "metrics")):
            for row in event.get(field_name, ()):
                if row["rank"] is not None and ("worker", row["rank"]) not in own:
                    raise Rejected(f"sent {what} of rank {row['rank']}, which is not its own")
        for rank in event.get("stacks", ()):
            if not (rank.isascii() and rank.isdecimal() and len(rank) < 10 and ("worker", int(rank)) in own):
                raise Rejected(f"sent the stack of rank {rank[:64]!r}, which is not its own")


@dataclass(slots=True)
class FileClaims:
    """The files of each host in all attempts so far: earlier ones have left theirs on it."""

    folders: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    files: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, plan: Plan) -> None:
        for process in plan.processes:
            if process.role == "worker" and process.rank is not None:
                self.folders[process.host].add(layout.rank_folder(process.rank))
            elif process.role == "scheduler":
                self.folders[process.host].add(layout.SCHEDULER)
            elif process.role == "script":
                name = PurePosixPath(process.log).name
                earlier = (layout.earlier_name(name, attempt) for attempt in range(plan.attempt))
                self.folders[process.host].add(layout.MSRUN_LOGS)
                self.files[process.host].update(map(layout.script, (name, *earlier)))
        for host in plan.hosts if plan.setup else ():
            self.files[host.name].add(layout.SETUP_LOG)
        for host in plan.hosts if plan.sync else ():
            self.files[host.name].add(layout.SYNC_LOG)

    def check(self, host: str, path: str) -> tuple[str, ...]:
        """Make sure that a host may write a file, and return the parts of its path below the run's folder."""
        parts = tuple(path.split("/"))
        is_plain = len(parts) <= MOST_PARTS and not {"", ".", ".."} & set(parts) and _can_be_a_name(path)
        is_own = parts[0] in self.folders[host] or path in self.files[host]
        if not (is_plain and is_own and is_collected(parts)):
            raise Rejected(f"sent the file {path[:64]!r}, which is not its own")
        return parts


def _can_be_a_name(path: str) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeError:
        return False
