"""Runs a sweep to its end, in threads of this process or as one job array of a queue, and says how each run ended."""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import Any

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, NotReadyError, RecordUnreadable
from mslaunch.launcher import pipeline
from mslaunch.launcher.background import BackgroundRun, ThreadRunner
from mslaunch.launcher.folder import create_queued
from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.launcher.read import Request
from mslaunch.metrics.progress import short
from mslaunch.run import launchers, record
from mslaunch.run.liveness import current
from mslaunch.run.metrics_file import last_values
from mslaunch.run.paths import RunFolder
from mslaunch.run.run import Result, save_stopped
from mslaunch.run.writing import write_atomically
from mslaunch.signals import ASKING, SUSPEND, Signals, SignalSource
from mslaunch.sweeps.planning import Claim, Sweep, opened
from mslaunch.text import first_line
from mslaunch.transports.base import JobQueue

POLL = 0.1
QUEUE_POLL = 0.5
STOP_MARGIN = 20.0


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One combination and how its run ended."""

    index: int
    values: Mapping[str, Any]
    typed: Mapping[str, str]  # the values that differ between runs, as they were typed
    name: str  # what `mslaunch status` takes: SWEEP/RUN
    result: Result
    seconds: float | None = None
    loss: str | None = None

    def to_dict(self) -> dict[str, Any]:
        result = self.result
        return {
            "values": self.values,
            "state": result.state,
            "exit_code": result.exit_code,
            "seconds": self.seconds,
            "loss": _number(self.loss),
            "run": self.name,
            "run_dir": str(result.path),
            "why": why(result),
        }


def _number(loss: str | None) -> float | str | None:
    try:
        number = float(loss) if loss is not None else None
    except ValueError:
        return loss
    return loss if number is not None and not math.isfinite(number) else number


def why(result: Result) -> str | None:
    """Say why a run failed, in one line."""
    if result.verdict is None:
        return None
    who = f"rank {result.verdict.rank}: " if result.verdict.rank is not None else ""
    return who + first_line(result.verdict.summary)


def result_of(sweep: Sweep, index: int, error: BaseException | None = None) -> SweptRun:
    """Read how a run stands; `error` is why it could not begin."""
    folder = sweep.folder.run(sweep.run_ids[index])
    now = seconds = loss = None
    with suppress(RecordUnreadable):
        now = current(folder)
    if now is not None and (error is None or now.state in record.ENDED):
        result = Result(now.run_id, folder.path, now.state, now.exit_code, now.verdict, now.ranks)
        loss = _last_loss(folder)
        if now.ended is not None:
            seconds = round(now.seconds_taken(datetime.now().astimezone()), 3)
    elif error is None:
        result = Result(folder.run_id, folder.path, "not started", None, None, ())
    else:
        code, summary = 1, repr(error)
        if isinstance(error, MslaunchError):
            code, summary = error.exit_code, str(error)
        verdict = Verdict(exit_code=code, cause="not ready", summary=summary)
        result = Result(folder.run_id, folder.path, "failed", code, verdict, ())
    combination = sweep.combinations[index]
    typed = {key: combination.typed[key] for key in combination.varied or combination.typed}
    name = f"{sweep.folder.sweep_id}/{folder.run_id}"
    return SweptRun(index, combination.values, typed, name, result, seconds, loss)


def _last_loss(folder: RunFolder) -> str | None:
    """The last loss of the first rank that told one, of the last attempt."""
    losses = []
    for source, values in last_values(folder.metrics, 1).items():
        if "loss" in values:
            losses.append((source.attempt, -(source.rank or 0), values["loss"]))
    return short(max(losses)[2]) if losses else None


def exit_code(runs: Sequence[SweptRun]) -> int:
    """0 if all succeeded, else the code of the first that failed by itself, else of the first that did not succeed."""
    wrong = [run.result for run in runs if not run.result.succeeded]
    first = next((result for result in wrong if result.state == "failed"), wrong[0] if wrong else None)
    return 0 if first is None else first.exit_code or 1


def swept_so_far(sweep: Sweep) -> list[SweptRun]:
    """Return how the runs of a sweep stand now."""
    return [result_of(sweep, index) for index in range(len(sweep.combinations))]


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """Something that is to be shown: `opened`, `submitted`, `started`, `ended`, `stopping` or `note`."""

    kind: str
    index: int | None = None
    run: SweptRun | None = None
    text: str = ""


Observe = Callable[[SweepEvent], None]


class _SweepProgress:
    """What is left to run of a sweep, and how its runs have ended."""

    def __init__(self, sweep: Sweep, observe: Observe, signals: SignalSource | None, fail_fast: bool) -> None:
        self.sweep = sweep
        self.observe = observe
        self.signals = signals
        self.fail_fast = fail_fast
        self.interrupt: int | None = None
        """The signal that ended the sweep."""
        self._left = list(sweep.waiting)
        self._results: dict[int, SweptRun] = {}

    def _received(self) -> list[int]:
        signals = list(self.signals.read()) if self.signals else []
        return signals + launchers.receive(self.sweep.folder)

    def _all_results(self) -> list[SweptRun]:
        everything = range(len(self.sweep.combinations))
        return [self._results.get(index) or result_of(self.sweep, index) for index in everything]


class _Member(ThreadRunner):
    """One run of a sweep on the road of every launch. Hosts may take long to answer: hence a thread for each."""

    def __init__(self, index: int, request: Request, ended: SimpleQueue[int]) -> None:
        self.error: BaseException | None = None
        self.target: str | None = None
        """Where the run's ranks compute, once its hosts have told."""
        self._index = index
        self._request = request
        self._ended = ended
        self._lock = threading.Lock()
        self._signals: list[int] = []
        self._run: BackgroundRun | None = None
        self.thread = threading.Thread(target=self._launch, name=f"mslaunch run {index + 1}", daemon=True)

    def _launch(self) -> None:
        try:
            started = pipeline.launch(self._request, self)
            if started is not None:
                started.wait()
        except BaseException as error:
            self.error = error
        finally:
            self._ended.put(self._index)

    def starts(self, planned: PlannedJob) -> bool:
        """Note where the run computes; it does not start once the end has been asked for."""
        self.target = planned.plan.device_target
        return not self._signals

    def run(self, launch: Launch) -> BackgroundRun:
        with self._lock:
            self._run = BackgroundRun(launch)
            for number in self._signals:
                self._run.send(number)
        return self._run

    def send(self, number: int) -> None:
        """Pass a signal on; a run that has not begun yet does not begin if it asks for the end."""
        with self._lock:
            if self._run is not None:
                self._run.send(number)
            elif number not in ASKING:
                self._signals.append(number)


class _SweepRunner(_SweepProgress):
    """Starts runs in order, waits for them, and stops them when asked to."""

    def __init__(self, sweep: Sweep, observe: Observe, signals: SignalSource | None, fail_fast: bool) -> None:
        super().__init__(sweep, observe, signals, fail_fast)
        self._stopping = False
        self._under_way: dict[int, _Member] = {}
        self._free = list(sweep.pool)
        self._held: dict[int, tuple[int, ...]] = {}
        self._fixed: dict[int, frozenset[tuple[str, int]]] = {}
        self._ended: SimpleQueue[int] = SimpleQueue()

    def run(self) -> list[SweptRun]:
        """Run what is to be run; return how all runs of the sweep ended."""
        try:
            while self._under_way or (self._left and not self._stopping):
                self._start_more()
                self._turn()
        except BaseException:
            self._stop(signal.SIGTERM)
            for member in self._under_way.values():
                member.thread.join()
            raise
        return self._all_results()

    def _start_more(self) -> None:
        limit = self.sweep.at_once or 1
        while self._left and not self._stopping and len(self._under_way) < limit:
            index = self._left[0]
            claim = self.sweep.claims.get(index, Claim())
            if claim.count > len(self._free) or any(claim.fixed & devices for devices in self._fixed.values()):
                return  # no two runs are given the same devices
            del self._left[0]
            devices, self._free = tuple(self._free[: claim.count]), self._free[claim.count :]
            self._held[index], self._fixed[index] = devices, claim.fixed
            member = _Member(index, self.sweep.member(index, devices), self._ended)
            self._under_way[index] = member
            member.thread.start()
            self.observe(SweepEvent("started", index))

    def _turn(self) -> None:
        """Wait a moment for a run to end, and handle signals and requests."""
        with suppress(Empty):
            self._finish(self._ended.get(timeout=POLL))
        for number in self._received():
            self._handle(number)
        for index, member in self._under_way.items():
            if member.target == "CPU":  # on other hosts, which turns out only now
                self._fixed[index] = frozenset()

    def _handle(self, number: int) -> None:
        if number == SUSPEND:
            self.observe(SweepEvent("note", text="a sweep cannot be suspended; it goes on"))
        elif number in ASKING:
            for member in self._under_way.values():
                member.send(number)
        else:
            self.interrupt = self.interrupt or number
            self.observe(SweepEvent("stopping"))
            self._stop(number)

    def _stop(self, number: int) -> None:
        self._stopping = True
        for member in self._under_way.values():
            member.send(number)

    def _finish(self, index: int) -> None:
        member = self._under_way.pop(index)
        member.thread.join()
        self._free = sorted([*self._free, *self._held.pop(index)])
        del self._fixed[index]
        run = self._results[index] = result_of(self.sweep, index, member.error)
        self.observe(SweepEvent("ended", index, run))
        if self.fail_fast and not run.result.succeeded and not self._stopping:
            self.observe(SweepEvent("stopping", text="a run has failed: stopping the others"))
            self._stop(signal.SIGTERM)


def unseen_sweep(_event: SweepEvent) -> None:
    """Show nothing."""


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


class _ArrayFollower(_SweepProgress):
    """Watches the runs of a submitted sweep. A signal cancels the job; the end of this process does not."""

    def __init__(
        self, sweep: Sweep, observe: Observe, signals: SignalSource | None, fail_fast: bool, queue: JobQueue, job: str
    ) -> None:
        super().__init__(sweep, observe, signals, fail_fast)
        self.queue = queue
        self.job = job
        self._cancelled = False
        self._kill_at: float | None = None
        self._reason = ""
        self._started: set[int] = set()

    def run(self) -> list[SweptRun]:
        """Follow all runs to their end; return how they ended."""
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
        return self._all_results()

    def _signals(self) -> Iterator[int]:
        until = time.monotonic() + QUEUE_POLL
        while self._left and time.monotonic() < until:
            yield from self._received()
            time.sleep(QUEUE_POLL / 5)

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
            runner = _SweepRunner(sweep, observe, signals, fail_fast)
            return runner.run(), runner.interrupt
        job = submit_sweep(sweep, sweep.queue)
        observe(SweepEvent("submitted", text=job))
        early_signals = signals.read() if signals else []  # while the queue had not answered
        if detach and not early_signals:
            return [], None
        follower = _ArrayFollower(sweep, observe, signals, fail_fast, sweep.queue, job)
        for number in early_signals:
            follower.handle(number)
        return follower.run(), follower.interrupt
