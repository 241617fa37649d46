"""events.jsonl: what the launcher adds to it, and its events as programs read them, during the run or afterwards."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Union

from mslaunch.diagnose.verdict import signal_name
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.schema import RunStatus
from mslaunch.documents.typed import make
from mslaunch.metrics.progress import steps_per_second
from mslaunch.metrics.rows import Number, Row, Source, read_row
from mslaunch.run.paths import RunFolder
from mslaunch.shared.follow import Follower

POLL = 0.1
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A rank's process has started."""

    rank: int
    host: str
    pid: int
    time: float


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A rank has returned from mindspore.communication.init()."""

    rank: int
    host: str
    time: float


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Rank 0 has reported a step, by a line of its log or by `report`."""

    rank: int
    epoch: int | None
    step: int | None
    loss: float | None
    steps_per_second: float | None


@dataclass(frozen=True, slots=True)
class RankFailed:
    """A rank has raised an exception, or ended with a code other than 0 or by a signal that mslaunch did not send."""

    rank: int
    host: str
    summary: str
    time: float


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A rank's process has ended."""

    rank: int
    host: str
    exit_code: int | None
    signal: int | None
    time: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """The job is started again, after `launch.backoff` seconds."""

    attempt: int
    time: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over; always the last event."""

    state: RunStatus
    exit_code: int | None


RunEvent = Union[RankStarted, RankJoined, RankProgress, RankFailed, RankEnded, Restarted, RunEnded]  # noqa: UP007


def read_until(has_ended: Callable[[], bool], follower: Follower, read: Callable[[], Iterable[Item]]) -> Iterator[Item]:
    """Yield what `read` returns until a run has ended and the follower has read all of its file."""
    while True:
        ended = has_ended()  # before reading: what was written until then is read below
        yield from read()
        if follower.behind():
            continue
        if ended:
            return
        time.sleep(POLL)


def follow_events(folder: RunFolder, has_ended: Callable[[], bool]) -> Iterator[RunEvent]:
    """Yield events as they come, until the run has ended; the caller adds the end itself."""
    reader = _EventReader(folder)
    with closing(reader.events), closing(reader.steps.follower):
        yield from read_until(has_ended, reader.events, reader.read)


_RECORDED: dict[str, type[RankStarted | RankJoined]] = {"started": RankStarted, "joined": RankJoined}
"""Events that are recorded with the same fields."""


class _EventReader:
    """Reads events.jsonl, and the steps that rank 0 prints, which belong between its start and its end."""

    def __init__(self, folder: RunFolder) -> None:
        self.events = Follower(str(folder.events))
        self.steps = _StepReader(folder)
        self._failed: set[int] = set()
        self._done: set[int] = set()
        self._stopping = False

    def read(self) -> Iterator[RunEvent]:
        for line in self.events.read():
            try:
                events = self._typed(parse_json(line))
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut by a full disk, or is not ours
            for event in events:
                is_end = isinstance(event, (RankFailed, RankEnded)) and event.rank == 0
                if is_end or isinstance(event, Restarted):
                    yield from self.steps.read()
                yield event
            if events and isinstance(events[-1], Restarted):
                self.steps.restart(events[-1].attempt)
        yield from self.steps.read()

    def _typed(self, raw: dict[str, Any]) -> list[RunEvent]:
        kind = raw["ev"]
        if raw.get("role", "worker") != "worker":
            return []
        if kind in _RECORDED:
            return [make(_RECORDED[kind], raw)]
        if kind == "error":
            failed = make(RankFailed, {**raw, "summary": raw["message"]})
            self._failed.add(failed.rank)
            return [failed]
        if kind == "exited":
            return self._exited(make(RankEnded, {**raw, "exit_code": raw["code"]}))
        if kind == "restart":
            restarted = make(Restarted, raw)
            self._failed, self._done, self._stopping = set(), set(), False
            return [restarted]
        if kind == "done":
            self._done.add(raw["rank"])
        self._stopping = self._stopping or kind == "stopping"
        return []

    def _exited(self, ended: RankEnded) -> list[RunEvent]:
        if ended.signal and ended.rank in self._done:
            ended = replace(ended, exit_code=0, signal=None)  # MindSpore crashed in its clean-up after the script
        number = ended.signal
        by_itself = not self._stopping or number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
        if ended.exit_code == 0 or not by_itself or ended.rank in self._failed:
            return [ended]
        how = f"was killed by {signal_name(number)}" if number else f"exited with code {ended.exit_code}"
        return [RankFailed(ended.rank, ended.host, how, ended.time), ended]


class _StepReader:
    """Reads the steps of rank 0 from metrics.jsonl, attempt by attempt."""

    def __init__(self, folder: RunFolder) -> None:
        self.follower = Follower(str(folder.metrics))
        self._waiting: deque[Row] = deque()
        self._source = Source(0, 0)
        self._read_until = 0.0
        self._last: dict[str, Number] = {}

    def restart(self, attempt: int) -> None:
        """Go on with the next attempt."""
        self._source = Source(attempt, 0)
        self._last = {}

    def read(self) -> Iterator[RankProgress]:
        """Yield the steps of this attempt that are known by now; later attempts wait for their start."""
        while self.follower.behind():
            rows = map(read_row, self.follower.read())
            self._waiting.extend(row for row in rows if row and row.source.rank == 0)
        while self._waiting and self._waiting[0].source.attempt <= self._source.attempt:
            row = self._waiting.popleft()
            if row.source != self._source or row.time < self._read_until:  # a thinned file is read from its start
                continue
            before = (self._last.get("epoch"), self._last.get("step"))
            self._last.update({name: number for name in row.values if (number := row.last(name)) is not None})
            epoch, step = self._last.get("epoch"), self._last.get("step")
            if (epoch, step) != before:
                self._read_until = row.time
                loss = self._last.get("loss")
                yield RankProgress(0, _whole(epoch), _whole(step), loss, steps_per_second(self._last))


def _whole(number: Number | None) -> int | None:
    return int(number) if number is not None and math.isfinite(number) else None
