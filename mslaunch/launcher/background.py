"""A launcher in a thread of the calling program: no signal handler is taken, and its end ends the job."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.launcher.runners import record_failure, run_here, submit
from mslaunch.run import launchers, record
from mslaunch.run.run import Result, Run
from mslaunch.signals import SignalSource
from mslaunch.transports.base import JobQueue, ignore

if TYPE_CHECKING:
    from mslaunch.checkpoint.moving.shard_writer import Progress


class ThreadRunner:
    """Runs jobs in threads of the calling program, which go on until the program ends."""

    take_part = None
    say = staticmethod(ignore)

    def submit(self, planned: PlannedJob, queue: JobQueue) -> Run:
        return submit(planned, queue)[0]

    def starts(self, _planned: PlannedJob) -> bool:
        return True

    def moving(self) -> AbstractContextManager[Callable[[int], Progress]]:
        return nullcontext(lambda _total: lambda _moved: None)

    def run(self, launch: Launch) -> BackgroundRun:
        return BackgroundRun(launch)


REQUESTS_EVERY = 0.25

_running: set[BackgroundRun] = set()


class BackgroundRun(Run):
    """A run whose launcher is a thread of this process.

    The end of the thread is an Event of our own: Thread.join() takes a thread for ended when Ctrl-C interrupts it
    (Python up to 3.12). A forked child has no such thread; there a BackgroundRun behaves like any other Run.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch.folder)
        self._launched = replace(launch, plan=replace(launch.plan, tail=()))  # nobody is shown the output
        self._pid = os.getpid()
        self._signals = SignalSource()
        self._signals_open = threading.Lock()
        self._look_at = 0.0
        self._final: record.RunRecord | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        thread = threading.Thread(target=self._launch, name=f"mslaunch {self.run_id}", daemon=True)
        _running.add(self)
        try:
            thread.start()
        except BaseException as error:
            if launch.site.cluster is not None:
                launch.site.cluster.close()
            self._finish(error)
            raise

    @property
    def record(self) -> record.RunRecord:
        return self._final or super().record

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set() if self._is_ours else super().has_ended

    def __exit__(self, *error: object) -> None:
        if self._is_ours:  # a forked child that leaves the block must not end its parent's job
            super().__exit__(*error)

    def wait(self, timeout: float | None = None) -> Result:
        if not self._is_ours:
            return super().wait(timeout)
        try:
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.send(signal.SIGTERM)
            self._ended.wait()
            raise
        if not ended:
            raise TimeoutError(f"{self.run_id} has not ended after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self.result

    def stop(self) -> Result:
        if not self._is_ours:
            return super().stop()
        self.send(signal.SIGTERM)
        return self.wait()

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._pid

    def send(self, number: int) -> None:
        """Do what this signal asks a launcher for; nothing once the run has ended."""
        with self._signals_open:
            if not self._ended.is_set():
                self._signals.send(number)

    def _launch(self) -> None:
        error = None
        try:
            self._final = run_here(self._launched, self._observe, self._signals)
        except BaseException as raised:
            error = raised
        self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._error = error
            self._final = record_failure(self.folder, error)
        launchers.receive(self.folder)  # requests that nobody will see any more
        _running.discard(self)
        with self._signals_open:
            self._ended.set()
            self._signals.close()

    def _observe(self, _notice: object, _run_state: object, shown: Callable[[], None]) -> None:
        """Show nothing, since programs read the logs; look for requests of other programs."""
        shown()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + REQUESTS_EVERY
            for number in launchers.receive(self.folder):
                self._signals.send(number)


@atexit.register
def _stop_all() -> None:
    """Stop what still runs when the program ends, all at once, so that the records say how the runs ended."""
    runs = [run for run in tuple(_running) if run._is_ours]
    for run in runs:
        run.send(signal.SIGTERM)
    for run in runs:
        run._ended.wait()
