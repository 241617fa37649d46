"""events.jsonl: what the launcher adds to it, and its events as programs read them, during the run or afterwards."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Union

from mslaunch.diagnose.verdict import signal_name
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.schema import RunStatus
from mslaunch.documents.typed import make
from mslaunch.metrics.progress import steps_per_second
from mslaunch.metrics.rows import Number, Row, Source, read_row
from mslaunch.run.paths import RunFolder
from mslaunch.shared.follow import Follower

POLL = 0.1


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


def follow_events(folder: RunFolder, has_ended: Callable[[], bool]) -> Iterator[RunEvent]:
    """Yield events as they come, until the run has ended; the caller adds the end itself."""
    reader = _EventReader(folder)
    try:
        while True:
            ended = has_ended()  # before reading: what was written until then is read below
            yield from reader.read()
            if reader.is_behind:
                continue
            if ended:
                return
            time.sleep(POLL)
    finally:
        reader.close()


class _EventReader:
    """Reads events.jsonl, and the steps that rank 0 prints, which belong between its start and its end."""

    def __init__(self, folder: RunFolder) -> None:
        self._events = Follower(str(folder.events))
        self._steps = _StepReader(folder)
        self._failed: set[int] = set()
        self._done: set[int] = set()
        self._stopping = False

    def read(self) -> Iterator[RunEvent]:
        for line in self._events.read():
            try:
                event: dict[str, Any] = parse_json(line)
                made = list(self._typed(event))
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut by a full disk, or is not ours
            if any(isinstance(typed, Restarted) or _ends_first_rank(typed) for typed in made):
                yield from self._steps.read()
            yield from made
            if made and isinstance(made[-1], Restarted):
                self._steps.restart(made[-1].attempt)
        yield from self._steps.read()

    @property
    def is_behind(self) -> bool:
        return bool(self._events.behind())

    def close(self) -> None:
        self._events.close()
        self._steps.close()

    def _typed(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        handler = _HANDLERS.get(event["ev"])
        if handler is not None and event.get("role", "worker") == "worker":
            yield from handler(self, event)

    def _started(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        yield make(RankStarted, event)

    def _joined(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        yield make(RankJoined, event)

    def _on_done(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        self._done.add(event["rank"])
        yield from ()

    def _raised(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        failed = make(RankFailed, {**event, "summary": event["message"]})
        self._failed.add(failed.rank)
        yield failed

    def _exited(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        ended = make(RankEnded, {**event, "exit_code": event["code"]})
        rank, host, code, number, when = ended.rank, ended.host, ended.exit_code, ended.signal, ended.time
        if number and rank in self._done:
            code, number = 0, None  # MindSpore crashed in its clean-up: the script had ended well
        by_itself = not self._stopping or number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
        if code != 0 and by_itself and rank not in self._failed:
            how = f"was killed by {signal_name(number)}" if number else f"exited with code {code}"
            yield RankFailed(rank, host, how, when)
        yield RankEnded(rank, host, code, number, when)

    def _on_stopping(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        del event
        self._stopping = True
        yield from ()

    def _restarted(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        restarted = make(Restarted, event)
        self._failed, self._done, self._stopping = set(), set(), False
        yield restarted


def _ends_first_rank(event: RunEvent) -> bool:
    return isinstance(event, (RankFailed, RankEnded)) and event.rank == 0


_HANDLERS: dict[str, Callable[[_EventReader, dict[str, Any]], Iterator[RunEvent]]] = {
    "started": _EventReader._started,
    "joined": _EventReader._joined,
    "done": _EventReader._on_done,
    "error": _EventReader._raised,
    "exited": _EventReader._exited,
    "stopping": _EventReader._on_stopping,
    "restart": _EventReader._restarted,
}


class _StepReader:
    """Reads the steps of rank 0 from metrics.jsonl, attempt by attempt."""

    def __init__(self, folder: RunFolder) -> None:
        self._follower = Follower(str(folder.metrics))
        self._waiting: deque[Row] = deque()
        self._source = Source(0, 0)
        self._read_until = 0.0
        self._known: dict[str, Number] = {}

    def restart(self, attempt: int) -> None:
        """Go on with the next attempt."""
        self._source = Source(attempt, 0)
        self._known = {}

    def read(self) -> Iterator[RankProgress]:
        """Yield the steps of this attempt that are known by now; later attempts wait for their start."""
        while self._follower.behind():
            self._waiting.extend(
                row for line in self._follower.read() if (row := read_row(line)) and row.source.rank == 0
            )
        while self._waiting and self._waiting[0].source.attempt <= self._source.attempt:
            row = self._waiting.popleft()
            if row.source == self._source and row.time >= self._read_until:  # a thinned file is read from its start
                yield from self._progress(row)

    def _progress(self, row: Row) -> Iterator[RankProgress]:
        before = (self._known.get("epoch"), self._known.get("step"))
        self._known.update({name: number for name in row.values if (number := row.last(name)) is not None})
        epoch, step = self._known.get("epoch"), self._known.get("step")
        if (epoch, step) != before:
            self._read_until = row.time
            loss = self._known.get("loss")
            yield RankProgress(0, _whole(epoch), _whole(step), loss, steps_per_second(self._known))

    def close(self) -> None:
        self._follower.close()


def _whole(number: Number | None) -> int | None:
    return int(number) if number is not None and math.isfinite(number) else None
