"""The runs of a sweep in this process: a launcher in a thread for each, as many at a time as may be."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from mslaunch.launcher import pipeline
from mslaunch.launcher.background import BackgroundRun, ThreadRunner
from mslaunch.launcher.pipeline import Launch, PlannedJob
from mslaunch.launcher.read import Request
from mslaunch.run import launchers
from mslaunch.signals import ASKING, SUSPEND, SignalSource
from mslaunch.sweeps.planning import Claim, Sweep
from mslaunch.sweeps.results import SweptRun, result_of

POLL = 0.1


@dataclass(frozen=True, slots=True)
class SweepEvent:
    """Something that is to be shown: `opened`, `submitted`, `started`, `ended`, `stopping` or `note`."""

    kind: str
    index: int | None = None
    run: SweptRun | None = None
    text: str = ""


Observe = Callable[[SweepEvent], None]


class _Member(ThreadRunner):
    """One run of a sweep on the road of every launch. Hosts may take long to answer: hence a thread for each."""

    def __init__(self, index: int, request: Request, ended: queue.SimpleQueue[int]) -> None:
        self.error: BaseException | None = None
        self.target: str | None = None
        """Where the run's ranks compute, once its hosts have told."""
        self._index = index
        self._request = request
        self._ended = ended
        self._lock = threading.Lock()
        self._signals: list[int] = []
        self._run: BackgroundRun | None = None
        self._thread = threading.Thread(target=self._launch, name=f"mslaunch run {index + 1}", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

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


class _Devices:
    """Which devices are in use; no two runs are given the same."""

    def __init__(self, sweep: Sweep) -> None:
        self._claims = sweep.claims
        self._free = list(sweep.pool)
        self._held: dict[int, tuple[int, ...]] = {}
        self._fixed: dict[int, frozenset[tuple[str, int]]] = {}

    def take(self, index: int) -> tuple[int, ...] | None:
        """Return the devices that a run is given, none where it needs none; None if they are not free."""
        claim = self._claims.get(index, Claim())
        if claim.count > len(self._free) or any(claim.fixed & held for held in self._fixed.values()):
            return None
        devices, self._free = tuple(self._free[: claim.count]), self._free[claim.count :]
        self._held[index], self._fixed[index] = devices, claim.fixed
        return devices

    def give_back(self, index: int) -> None:
        self._free = sorted([*self._free, *self._held.pop(index, ())])
        self._fixed.pop(index, None)

    def compute_on_cpu(self, index: int) -> None:
        """A run on other hosts has turned out to use no device."""
        self._fixed[index] = frozenset()


class SweepRunner:
    """Starts runs in order, waits for them, and stops them when asked to."""

    def __init__(self, sweep: Sweep, observe: Observe, signals: SignalSource | None, fail_fast: bool) -> None:
        self.sweep = sweep
        self.observe = observe
        self.signals = signals
        self.fail_fast = fail_fast
        self.interrupt: int | None = None
        self._stopping = False
        self._left = list(sweep.waiting)
        self._under_way: dict[int, _Member] = {}
        self._devices = _Devices(sweep)
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._results: dict[int, SweptRun] = {}

    def run(self) -> list[SweptRun]:
        """Run what is to be run; return how all runs of the sweep ended, in the order of combinations."""
        try:
            while self._under_way or (self._left and not self._stopping):
                self._start_more()
                self._turn()
        except BaseException:
            self._stop(signal.SIGTERM)
            for member in self._under_way.values():
                member.wait()
            raise
        everything = range(len(self.sweep.combinations))
        return [self._results.get(index) or result_of(self.sweep, index) for index in everything]

    def _start_more(self) -> None:
        limit = self.sweep.at_once or 1
        while self._left and not self._stopping and len(self._under_way) < limit:
            index = self._left[0]
            devices = self._devices.take(index)
            if devices is None:
                return
            del self._left[0]
            member = _Member(index, self.sweep.member(index, devices), self._ended)
            self._under_way[index] = member
            member.begin()
            self.observe(SweepEvent("started", index))

    def _turn(self) -> None:
        """Wait a moment for a run to end, and handle signals and requests."""
        with suppress(queue.Empty):
            self._finish(self._ended.get(timeout=POLL))
        for number in self.signals.read() if self.signals else ():
            self._handle(number)
        for number in launchers.receive(self.sweep.folder):
            self._handle(number)
        for index, member in self._under_way.items():
            if member.target == "CPU":
                self._devices.compute_on_cpu(index)

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
        member.wait()
        self._devices.give_back(index)
        run = self._results[index] = result_of(self.sweep, index, member.error)
        self.observe(SweepEvent("ended", index, run))
        if self.fail_fast and not run.result.succeeded and not self._stopping:
            self.observe(SweepEvent("stopping", text="a run has failed: stopping the others"))
            self._stop(signal.SIGTERM)


def unseen_sweep(_event: SweepEvent) -> None:
    """Show nothing."""


def run_sweep(
    sweep: Sweep, observe: Observe, signals: SignalSource | None = None, fail_fast: bool = False
) -> tuple[list[SweptRun], int | None]:
    """Run a sweep whose folder is there; return its runs, and the signal that ended it."""
    runner = SweepRunner(sweep, observe, signals, fail_fast)
    return runner.run(), runner.interrupt
