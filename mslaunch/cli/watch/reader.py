"""Reads a run's folder again and again, in a thread: a slow disk or queue never holds up keys and screen."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mslaunch.cli.console.describe import describe_verdict
from mslaunch.cli.console.last_lines import read_tail
from mslaunch.cli.watch.model import (
    Happened,
    Overview,
    TimedNote,
    count_states,
    find_curve,
    find_progress,
    first_of,
    make_rows,
)
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Stamp, stamp_of
from mslaunch.errors import MslaunchError
from mslaunch.metrics.series import SeriesTable
from mslaunch.shared.follow import Follower

if TYPE_CHECKING:
    from mslaunch.run.record import RunRecord
    from mslaunch.run.run import Run


MOST_NOTES = 200


class EventReader:
    """What has happened so far, as far as the view shows it."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._notes: deque[TimedNote] = deque(maxlen=MOST_NOTES)
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
        self._notes.append(TimedNote(float(event["time"]), str(event["text"])))

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


EVERY = 0.5  # seconds between two looks at the folder
LONGEST_PAUSE = 3.0
SHARE = 20  # reading takes a twentieth of a core at most, also with 10,000 ranks
ALIVE_EVERY = 3.0  # seconds between two looks at a record that has not changed: is its launcher still there?


class RunReader:
    """What is known of a run; each `read` reads only what is new."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._record = run.record
        self._verdict: list[str] = []
        self._stamp: Stamp | None = None
        self._look_at = 0.0
        self._queue_job: str | None = None
        self._events = EventReader(str(run.folder.events))
        self._table = SeriesTable()
        self._update: Callable[[], object] | None = None
        self._log: tuple[int, Stamp | None] | None = None
        self._lines: list[str] = []

    def read(self, chosen: int | None, with_metrics: bool = True) -> Overview:
        """Return everything that is to be shown; `chosen` is the rank whose log and loss are wanted."""
        record = self._read_record()
        table = self._read_metrics() if with_metrics else self._table
        happened = self._events.read()
        now = time.time()
        rows = make_rows(record, table, happened, now)
        rank = first_of(rows) if chosen is None else chosen
        return Overview(
            self._run.name,
            record,
            rows,
            count_states(rows),
            find_progress(record, table, now),
            find_curve(record, table, chosen),
            happened,
            self._queue_job,
            rank,
            self._read_log(rank),
            self._verdict,
        )

    def _read_record(self) -> RunRecord:
        now, stamp = time.monotonic(), stamp_of(self._run.folder.record)
        if stamp != self._stamp or now >= self._look_at:
            self._record = self._run.record
            self._stamp, self._look_at = stamp, now + ALIVE_EVERY
            self._verdict = describe_verdict(self._record)
            self._queue_job = self._run.queue_job if self._record.state == "queued" else None
        return self._record

    def _read_metrics(self) -> SeriesTable:
        if self._update is not None:
            self._update()
        else:
            metrics = self._run.metrics()
            self._table, self._update = metrics.table, metrics.update
        return self._table

    def _read_log(self, rank: int | None) -> list[str]:
        if rank is None:
            return []
        path = self._run.folder.log(rank)
        seen = (rank, stamp_of(path))
        if seen != self._log:
            self._lines, _ = read_tail(path)
            self._log = seen
        return self._lines


class ReadingThread:
    """Keeps the newest overview, and writes a byte to a pipe whenever there is another one."""

    def __init__(self, run: Run, wake: Callable[[], None]) -> None:
        self._reader = RunReader(run)
        self._wake = wake
        self._asked = threading.Event()
        self._chosen: int | None = None
        self.error = ""
        """Why the folder could not be read just now."""
        self.defect: BaseException | None = None
        """What nobody has foreseen: for the thread that draws to raise."""
        self.overview = self._reader.read(None, with_metrics=False)
        threading.Thread(target=self._run, name="reading", daemon=True).start()

    def want(self, rank: int | None) -> None:
        """Say whose log is wanted; a change is read at once."""
        if rank != self._chosen:
            self._chosen = rank
            self._asked.set()

    def _run(self) -> None:
        while self.defect is None:
            began = time.thread_time()
            try:
                self.overview, self.error = self._reader.read(self._chosen), ""
            except (MslaunchError, OSError) as error:  # the folder was removed, or is closed to us
                self.error = str(error)
            except BaseException as error:
                self.defect = error
            self._wake()
            self._asked.wait(min(LONGEST_PAUSE, max(EVERY, SHARE * (time.thread_time() - began))))
            self._asked.clear()
