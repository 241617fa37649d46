"""A run as its own console would show it, rebuilt elsewhere from events.jsonl and the logs."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from mslaunch.launcher.attempt.notices import Note, Notice, Restart, SignalNotice, Stopping, read_notice
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.plan.model import Plan
from mslaunch.run.run import Run
from mslaunch.shared.follow import Follower


class AttachedRun:
    """Reads what a run's launcher records; never writes, and asks nothing of the launcher."""

    def __init__(self, run: Run, tail: tuple[int, ...] | None = None) -> None:
        self._run = run
        self._asked_tail = tail
        self._events = Follower(str(run.folder.events))
        self.plan = self._read_plan()
        self.run_state = RunState(self.plan, time.monotonic())
        self._logs = {rank: run.follow_log(rank) for rank in self.plan.tail}
        self._metrics = run.metrics()

    def _read_plan(self) -> Plan:
        plan = self._run.plan
        tail = plan.tail if self._asked_tail is None else self._asked_tail
        return replace(plan, tail=tuple(rank for rank in tail if rank < plan.world_size))

    def catch_up(self, lines: int) -> Iterator[Notice]:
        """Take in what has happened so far; yield the last notes and the last lines of each log."""
        notes = [notice for notice in self._read_events() if isinstance(notice, Note)]
        yield from notes[max(0, len(notes) - lines) :]
        for rank, log in self._logs.items():
            last: deque[str] = deque(maxlen=lines)
            while log.behind():
                last.extend(log.read())
            yield self._lines(rank, list(last))

    def read(self) -> Iterator[Notice]:
        """Yield what has come since: output first, since a rank prints before it ends."""
        for rank, log in self._logs.items():
            while log.behind():
                yield self._lines(rank, log.read())
        yield from self._read_events()
        if self._metrics.update():
            self.run_state.numbers.last = self._metrics.all_last()
            ahead = time.time() - time.monotonic()
            came = self._metrics.steps_came()
            self.run_state.numbers.step_came = {rank: when - ahead for rank, when in came.items()}

    def rest(self) -> Iterator[Notice]:
        """Yield what is left when the run has ended, last lines without a newline included."""
        yield from self.read()
        for rank, log in self._logs.items():
            yield self._lines(rank, [*log.read(), *log.rest()])

    def _lines(self, rank: int, lines: list[str]) -> Notice:
        return {"ev": "lines", "host": self.run_state.ranks.records[rank].host, "rank": rank, "lines": lines}

    def _read_events(self) -> Iterator[Notice]:
        while True:
            for line in self._events.read():
                try:
                    notice = read_notice(json.loads(line))
                    self._apply(notice)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # a line that was cut by a full disk, or of a version that this one does not know
                yield notice
            if not self._events.behind():
                return

    def _apply(self, notice: Notice) -> None:
        if isinstance(notice, SignalNotice):
            self.run_state.signalled(notice.signal)
        elif isinstance(notice, Stopping):
            self.run_state.ending.stopping = True  # what ends from now on did not fail by itself
        elif isinstance(notice, Restart):
            self.plan = self._read_plan()
            self.run_state = RunState(self.plan, time.monotonic())
        elif isinstance(notice, dict):
            self.run_state.dispatch(notice, time.monotonic())
        self.run_state.pop_notes()  # those of the real launcher are events
