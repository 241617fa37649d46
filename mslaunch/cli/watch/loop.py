"""The view of a run: keys and news in, screens out, until somebody quits or the launcher says that it is over.

The folder is read in a thread: a slow disk or queue never holds up keys and screen.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mslaunch.cli.console.console import window_size
from mslaunch.cli.console.describe import describe_verdict
from mslaunch.cli.console.last_lines import read_tail
from mslaunch.cli.watch import model
from mslaunch.cli.watch.frame import draw
from mslaunch.cli.watch.terminal import KEYS, SCREEN, Terminal, read_keys
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Stamp, stamp_of
from mslaunch.errors import MslaunchError, signal_code
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.record import ENDED
from mslaunch.run.run import Run
from mslaunch.shared.follow import Follower
from mslaunch.signals import SignalSource
from mslaunch.text import first_line

if TYPE_CHECKING:
    from mslaunch.run.metrics_file import Metrics

MOST_NOTES = 200
EVERY = 0.5  # seconds between two looks at the folder
LONGEST_PAUSE = 3.0
SHARE = 20  # reading takes a twentieth of a core at most, also with 10,000 ranks
ALIVE_EVERY = 3.0  # seconds between two looks at a record that has not changed: is its launcher still there?
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class EventReader:
    """What has happened so far, as far as the view shows it."""

    def __init__(self, path: str) -> None:
        self._follower = Follower(path)
        self._notes: deque[model.TimedNote] = deque(maxlen=MOST_NOTES)
        self._in_init: set[int] = set()
        self._is_stopping = False

    def read(self) -> model.Happened:
        """Read what is new and return all of it."""
        while lines := self._follower.read():
            for line in lines:
                with suppress(ValueError, KeyError, TypeError, AttributeError):  # cut by a full disk, or not ours
                    self._note(parse_json(line))
        return model.Happened(tuple(self._notes), frozenset(self._in_init), self._is_stopping)

    def _note(self, event: Mapping[str, Any]) -> None:
        kind = event["ev"]
        if kind == "note":
            self._notes.append(model.TimedNote(float(event["time"]), str(event["text"])))
        elif kind == "joining":
            self._in_init.add(event["rank"])
        elif kind in ("joined", "exited"):
            self._in_init.discard(event["rank"])
        elif kind == "stopping":
            self._is_stopping = True
        elif kind == "restart":
            self._in_init.clear()
            self._is_stopping = False


class RunReader:
    """Reads a run again and again in a thread, only what is new; keeps the newest overview, and calls `wake` then."""

    def __init__(self, run: Run, wake: Callable[[], None]) -> None:
        self._run = run
        self._wake = wake
        self._changed = threading.Event()
        self._chosen: int | None = None
        self._record = run.record
        self._verdict: list[str] = []
        self._stamp: Stamp | None = None
        self._look_at = 0.0
        self._queue_job: str | None = None
        self._events = EventReader(str(run.folder.events))
        self._metrics: Metrics | None = None
        self._log: tuple[int, Stamp | None] | None = None
        self._lines: list[str] = []
        self.error = ""  # why the folder could not be read just now
        self.defect: BaseException | None = None  # what nobody has foreseen: for the thread that draws to raise
        self.overview = self._read(SeriesTable())
        threading.Thread(target=self._read_on, name="reading", daemon=True).start()

    def choose(self, rank: int | None) -> None:
        """Say whose log and loss are shown; a change is read at once."""
        if rank != self._chosen:
            self._chosen = rank
            self._changed.set()

    def _read_on(self) -> None:
        while self.defect is None:
            began = time.thread_time()
            try:
                if self._metrics is None:
                    self._metrics = self._run.metrics()
                else:
                    self._metrics.update()
                self.overview, self.error = self._read(self._metrics.table), ""
            except (MslaunchError, OSError) as error:  # the folder was removed, or is closed to us
                self.error = str(error)
            except BaseException as error:
                self.defect = error
            self._wake()
            self._changed.wait(min(LONGEST_PAUSE, max(EVERY, SHARE * (time.thread_time() - began))))
            self._changed.clear()

    def _read(self, table: SeriesTable) -> model.Overview:
        self._read_record()
        chosen, record, happened, now = self._chosen, self._record, self._events.read(), time.time()
        rows = model.make_rows(record, table, happened, now)
        rank = model.first_of(rows) if chosen is None else chosen
        return model.Overview(
            self._run.name,
            record,
            rows,
            model.count_states(rows),
            model.find_progress(record, table, now),
            model.find_curve(record, table, chosen),
            happened,
            self._queue_job,
            rank,
            [] if rank is None else self._read_log(rank),
            self._verdict,
        )

    def _read_record(self) -> None:
        now, stamp = time.monotonic(), stamp_of(self._run.folder.record)
        if stamp != self._stamp or now >= self._look_at:
            self._record = self._run.record
            self._stamp, self._look_at = stamp, now + ALIVE_EVERY
            self._verdict = describe_verdict(self._record)
            self._queue_job = self._run.queue_job if self._record.state == "queued" else None

    def _read_log(self, rank: int) -> list[str]:
        path = self._run.folder.log(rank)
        seen = (rank, stamp_of(path))
        if seen != self._log:
            self._lines, _ = read_tail(path)
            self._log = seen
        return self._lines


class Wake(SignalSource):
    """Wakes the loop: signals write their numbers, threads a zero."""

    def __init__(self) -> None:
        super().__init__()
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, lambda *_: None)

    def call(self) -> None:
        self.send(0)


class RunView:
    """One run on one terminal. `is_launchers`: the process above carries the run out, and tells when it has ended."""

    def __init__(self, run: Run, terminal: Terminal, above: int, is_launchers: bool) -> None:
        self._run = run
        self._terminal = terminal
        self._above = above
        self._is_launchers = is_launchers
        self._wake = Wake()
        self._reading = RunReader(run, self._wake.call)
        self._now = model.Choices()
        self._room = model.Room()
        self._changes: list[dict[str, Any]] = []
        self._defect: BaseException | None = None
        self._code: int | None = None

    def show(self) -> int:
        """Show the run until somebody quits; return the exit code."""
        self._terminal.enter()
        while self._code is None:
            self._draw()
            ready, _, _ = select.select([KEYS, self._wake.fileno(), self._above], [], [])
            if self._above in ready:  # whoever started the view has ended, or wants it to
                return 0
            if self._wake.fileno() in ready:
                self._receive(set(self._wake.read()))
            if KEYS in ready and self._code is None:
                self._read_keys()
        return self._code

    def _receive(self, numbers: set[int]) -> None:
        if signal.SIGWINCH in numbers or signal.SIGCONT in numbers:
            self._terminal.forget()
        if signal.SIGTSTP in numbers:
            self._suspend()
        ignored = {signal.SIGINT} if self._is_launchers else set()  # the launcher gets it too, and stops the job
        for number in ENDING:
            if number in numbers - ignored:
                self._code = signal_code(number)

    def _read_keys(self) -> None:
        try:
            data = os.read(KEYS, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._code = signal_code(signal.SIGHUP)
            return
        for key in read_keys(data):
            self._press(key)

    def _press(self, key: str) -> None:
        overview = self._reading.overview
        asks = self._is_launchers and overview.record.state not in ENDED
        self._now, action = model.press(self._now, key, overview, self._room, asks)
        if action == "quit":
            self._code = 0
        elif action == "suspend":
            self._suspend()
        elif action == "redraw":
            self._terminal.forget()
        elif action == "stop":
            self._do("stopping all ranks ...", self._stop)
        elif action == "stacks":
            self._do("", self._take_stacks)

    def _do(self, message: str, work: Callable[[], dict[str, Any]]) -> None:
        """Do something that takes time in a thread; what it returns changes the choices once it is done."""
        self._now = replace(self._now, message=message)

        def run() -> None:
            try:
                self._changes.append(work())
            except (MslaunchError, OSError) as error:
                self._changes.append({"message": first_line(str(error))})
            except BaseException as error:
                self._defect = error
            self._wake.call()

        threading.Thread(target=run, daemon=True).start()

    def _stop(self) -> dict[str, Any]:
        return {"message": f"the run is {self._run.stop().state}"}

    def _take_stacks(self) -> dict[str, Any]:
        try:
            lines = [line for group in self._run.stacks() for line in (*group.splitlines(), "")]
        except MslaunchError as error:
            lines = str(error).splitlines()
        return {"stacks": tuple(lines)}

    def _suspend(self) -> None:
        """Leave the screen, then stop, and with us whoever started us: the shell must find its screen as it was."""
        self._terminal.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, lambda *_: None)
        self._terminal.enter()

    def _draw(self) -> None:
        if defect := self._defect or self._reading.defect:
            raise defect
        while self._changes:
            self._now = replace(self._now, **self._changes.pop(0))
        overview, size = self._reading.overview, window_size(SCREEN)
        now = replace(self._now, message=first_line(self._reading.error)) if self._reading.error else self._now
        lines, self._room = draw(overview, now, *size, datetime.now().astimezone())
        self._terminal.draw(lines, size)
        self._reading.choose(model.chosen_rank(overview, self._now))
