"""Runs to show: real ones, with numbers over time as their ranks would have told them."""

from __future__ import annotations

import math
import random
from pathlib import Path

from mslaunch.metrics.rows import Row, Source
from mslaunch.run.find import find_run
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.run import Run


def rows(rank: int, attempt: int, start: float, steps: range, pace: float) -> list[Row]:
    """What a rank tells: a loss that falls, a rate, step times (rank 3 is slow in the middle), its resources."""
    chance = random.Random(f"{rank} {attempt}")
    found = []
    for step in steps:
        slow = 1.8 if rank == 3 and len(steps) * 0.4 < step - steps.start < len(steps) * 0.6 else 1.0
        loss = 4 * math.exp(-step / 150) + 0.4 + chance.random() * 0.2
        took = pace * slow * (1 + chance.random() * 0.1)
        time = start + (step - steps.start) * pace
        values = {"step": step, "loss": loss, "lr": 1e-3 * (1 - step / 2000), "step_time": took}
        found.append(Row(time, Source(attempt, rank), values))
        usage = {"cpu": 0.9 + chance.random() / 5, "memory": int(2e9 + step * 1e6), "cpu_wait": chance.random() / 50}
        found.append(Row(time, Source(attempt, rank), {**usage, "threads": 24, "read_rate": 1e6 * chance.random()}))
    return found


def host_rows(start: float, steps: range, pace: float) -> list[Row]:
    """What the agent of a host tells of it and of its devices."""
    chance = random.Random(7)
    times = [start + at * pace for at in range(len(steps))]
    host = [Row(time, Source(0, None, "n0"), {"load": 3 + chance.random(), "memory_used": 6.1e10}) for time in times]
    device = [Row(time, Source(0, None, "n0", 2), {"utilisation": 90 + 9 * chance.random()}) for time in times]
    return [*host, *device]


def tell(run: Run, ranks: int = 4, steps: range = range(400), pace: float = 1.0, attempt: int = 0) -> None:
    """Write the numbers of a job into a run's folder."""
    start = run.folder.plan.stat().st_mtime
    writer = MetricsWriter(run.folder.metrics)
    for rank in range(ranks):
        writer.write(rows(rank, attempt, start, steps, pace))
    writer.write(host_rows(start, steps, pace))
    writer.close()


def newest(runs: Path) -> Run:
    return find_run(None, runs)
