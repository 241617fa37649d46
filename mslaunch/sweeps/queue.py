"""The runs of a sweep as one job array of a queue: folders made, submitted, followed and cancelled."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from mslaunch.errors import MslaunchError, NotReadyError
from mslaunch.launcher import pipeline
from mslaunch.launcher.background import ThreadRunner
from mslaunch.launcher.folder import create_queued
from mslaunch.launcher.pipeline import PlannedJob
from mslaunch.run import launchers, record
from mslaunch.run.liveness import current
from mslaunch.run.paths import RunFolder
from mslaunch.run.run import save_stopped
from mslaunch.run.writing import write_atomically
from mslaunch.signals import ASKING, SUSPEND, Signals, SignalSource
from mslaunch.sweeps.members import Observe, SweepEvent, run_sweep
from mslaunch.sweeps.planning import Sweep, opened
from mslaunch.sweeps.results import SweptRun, result_of
from mslaunch.transports.base import JobQueue

POLL = 0.5
STOP_MARGIN = 20.0


class _ArrayMember(ThreadRunner):
    """Makes the folder of a run, which is submitted together with the others of its sweep."""

    def submit(self, planned: PlannedJob, _queue: JobQueue) -> tuple[PlannedJob, RunFolder]:  # type: ignore[override]
        return planned, create_queued(planned)


def submit_sweep(sweep: Sweep, queue: JobQueue) -> str:
    """Make the folder of every run, submit them as one job, and return its id. What fails leaves no folder behind."""
    folders: dict[int, RunFolder] = {}
    transport = ""
    secrets: dict[str, str] = {}
    try:
        for index in sweep.waiting:
            planned, folders[index] = pipeline.launch(sweep.member(index), _ArrayMember())
            secrets |= planned.site.secrets
            transport = planned.plan.transport
        members = {at: folder.path for at, folder in folders.items()}
        also = (secrets,) if secrets else ()
        job = queue.submit_array(sweep.folder.path, members, sweep.at_once, *also)
    except (MslaunchError, OSError) as error:
        for folder in folders.values():
            shutil.rmtree(folder.path, ignore_errors=True)
        if not sweep.is_resumed:
            shutil.rmtree(sweep.folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise NotReadyError(f"{sweep.folder.path}: cannot write the sweep's folder: {error.strerror}.") from None
        raise
    with suppress(OSError):  # a full disk: the job is found by the sweep's name
        write_atomically(sweep.folder.job(transport), job)
        for index, folder in folders.items():
            if not folder.job(transport).exists():
                write_atomically(folder.job(transport), queue.member(job, index))
    return job


class ArrayFollower:
    """Watches the runs of a submitted sweep. A signal cancels the job; the end of this process does not."""

    def __init__(
        self, sweep: Sweep, queue: JobQueue, job: str, observe: Observe, signals: SignalSource | None, fail_fast: bool
    ) -> None:
        self.sweep = sweep
        self.queue = queue
        self.job = job
        self.observe = observe
        self.signals = signals
        self.fail_fast = fail_fast
        self.interrupt: int | None = None
        self._cancelled = False
        self._kill_at: float | None = None
        self._reason = ""
        self._left = list(sweep.waiting)
        self._started: set[int] = set()
        self._results: dict[int, SweptRun] = {}

    def run(self) -> list[SweptRun]:
        """Follow all runs to their end; return them in the order of combinations."""
        while self._left:
            for index in list(self._left):
                self._look(index)
            if not self._started and not self._cancelled:
                self._tell_why_it_waits()
            for number in self._signals():
                self.handle(number)
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self._kill_at = None
                self.queue.kill(self.job)
        everything = range(len(self.sweep.combinations))
        return [self._results.get(index) or result_of(self.sweep, index) for index in everything]

    def _signals(self) -> Iterator[int]:
        until = time.monotonic() + POLL
        while self._left and time.monotonic() < until:
            yield from self.signals.read() if self.signals else ()
            yield from launchers.receive(self.sweep.folder)
            time.sleep(POLL / 5)

    def _look(self, index: int) -> None:
        folder = self.sweep.folder.run(self.sweep.run_ids[index])
        now = current(folder)
        if now.state != "queued" and index not in self._started and now.state != "stopped":
            self._started.add(index)
            self.observe(SweepEvent("started", index))
        if now.state not in record.ENDED:
            return
        self._left.remove(index)
        if self._cancelled:
            save_stopped(folder, now)
        else:
            with suppress(OSError):
                record.save(folder, now)  # what only the queue knew, it forgets
        run = self._results[index] = result_of(self.sweep, index)
        self.observe(SweepEvent("ended", index, run))
        if self.fail_fast and not run.result.succeeded and not self._cancelled:
            self._cancel("a run has failed: stopping the others")

    def _tell_why_it_waits(self) -> None:
        seen = self.queue.state(self.queue.member(self.job, self._left[0])) if self._left else None
        if seen is not None and seen.state == "queued" and seen.reason not in ("", self._reason):
            self._reason = seen.reason
            self.observe(SweepEvent("note", text=f"{self.queue.label} job {self.job} waits: {seen.reason}"))

    def handle(self, number: int) -> None:
        """Cancel the job at the first signal that asks for the end, and kill it at the second."""
        if number in ASKING or number == SUSPEND:
            return
        again, self.interrupt = self.interrupt is not None, self.interrupt or number
        if again:
            self.queue.kill(self.job)
        else:
            self._cancel()

    def _cancel(self, why: str = "") -> None:
        self._cancelled = True
        self.observe(SweepEvent("stopping", text=why))
        grace = self.sweep.plan.limits.grace if self.sweep.plan else 0.0
        self._kill_at = time.monotonic() + grace + STOP_MARGIN
        self.queue.cancel_array(self.job)


def follow_sweep(
    sweep: Sweep,
    queue: JobQueue,
    job: str,
    observe: Observe,
    signals: SignalSource | None = None,
    fail_fast: bool = False,
    asked: Sequence[int] = (),
) -> tuple[list[SweptRun], int | None]:
    """Follow a submitted sweep to its end; return its runs, and the signal that ended it. `asked` came before."""
    follower = ArrayFollower(sweep, queue, job, observe, signals, fail_fast)
    for number in asked:
        follower.handle(number)
    return follower.run(), follower.interrupt


def carry_out_sweep(
    sweep: Sweep, observe: Observe, fail_fast: bool = False, detach: bool = False, take_signals: bool = False
) -> tuple[list[SweptRun], int | None]:
    """Run a sweep to its end; return its runs, and the signal that ended it.

    With `take_signals` those of the process stop it. With `detach` a submitted sweep is left to its queue.
    """
    with ExitStack() as stack:
        stack.enter_context(opened(sweep, in_process=not take_signals))
        launchers.receive(sweep.folder)  # those of the time before it was resumed
        observe(SweepEvent("opened"))
        signals = stack.enter_context(Signals()) if take_signals else None
        if sweep.queue is None or not sweep.waiting:
            return run_sweep(sweep, observe, signals, fail_fast)
        job = submit_sweep(sweep, sweep.queue)
        observe(SweepEvent("submitted", text=job))
        asked = signals.read() if signals else []  # while the queue had not answered
        if detach and not asked:
            return [], None
        return follow_sweep(sweep, sweep.queue, job, observe, signals, fail_fast, asked)
