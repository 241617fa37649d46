"""From a planned sweep to its end: its folder is made, and its runs are run here or handed to a queue."""

from __future__ import annotations

from contextlib import ExitStack

from mslaunch.launcher.sweep import Sweep, opened
from mslaunch.launcher.sweep_queue import follow_sweep, submit_sweep
from mslaunch.launcher.sweep_result import SweptRun
from mslaunch.launcher.sweep_runs import Observe, SweepEvent, run_sweep
from mslaunch.runs import requests
from mslaunch.signals import Signals


def carry_out_sweep(
    sweep: Sweep, observe: Observe, fail_fast: bool = False, detach: bool = False, take_signals: bool = False
) -> tuple[list[SweptRun], int | None]:
    """Run a sweep to its end; return its runs, and the signal that ended it.

    With `take_signals` those of the process stop it. With `detach` a submitted sweep is left to its queue.
    """
    with ExitStack() as stack:
        stack.enter_context(opened(sweep, in_process=not take_signals))
        requests.withdraw(sweep.folder)  # those of the time before it was resumed
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
