"""Runs for tests of the view: a folder with record, events, logs and metrics, as a job of any size has it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.documents.schema import RunStatus
from mslaunch.metrics.rows import Row, Source
from mslaunch.run import launchers
from mslaunch.run import record as records
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder

STEPS = 500


def new_record(ranks: int, hosts: int = 1, **more: Any) -> records.RunRecord:
    """The record of a run that is going on; this process is its launcher."""
    started = records.iso(time.time() - 60)
    rows = tuple(records.RankRecord(rank, f"n{rank % hosts}", rank // hosts, 1000 + rank) for rank in range(ranks))
    rows = tuple(replace(row, started=started) for row in rows)
    launcher = launchers.this_process(in_process=True)
    base = records.RunRecord("big", "running", started, None, launcher, ranks, "dynamic", "local", "train.py", rows)
    return replace(base, **more)


@dataclass
class MadeRun:
    """A run's folder that a test fills as a launcher would."""

    folder: RunFolder
    record: records.RunRecord
    writer: MetricsWriter = field(init=False)

    def __post_init__(self) -> None:
        self.folder.path.mkdir(parents=True)
        self.writer = MetricsWriter(self.folder.metrics)
        self.save(self.record)

    def save(self, now: records.RunRecord) -> None:
        self.record = now
        records.save(self.folder, now)

    def set_rank(self, rank: int, **more: Any) -> None:
        """Change how one rank stands."""
        rows = tuple(replace(row, **more) if row.rank == rank else row for row in self.record.ranks)
        self.save(replace(self.record, ranks=rows))

    def step(self, step: int, when: float | None = None, **of_ranks: dict[str, float]) -> None:
        """Write one step of every rank; `r3={"loss": 2}` changes what rank 3 tells."""
        now = time.time() if when is None else when
        usual = {"step": step, "steps": STEPS, "epoch": 1, "epochs": 2, "loss": 10 / (step + 1), "step_time": 0.25}
        usual |= {"cpu": 1.5, "cpu_wait": 0.01, "memory": 2_500_000_000}
        attempt = self.record.attempt_of()
        self.writer.write(
            Row(now, Source(attempt, row.rank), usual | of_ranks.get(f"r{row.rank}", {})) for row in self.record.ranks
        )

    def event(self, **event: Any) -> None:
        with self.folder.events.open("a") as file:
            file.write(json.dumps({"time": time.time(), **event}) + "\n")

    def log(self, rank: int, text: str) -> None:
        path = self.folder.log(rank)
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def end(self, state: RunStatus, **more: Any) -> None:
        """Have the run end."""
        ended = records.iso(time.time())
        how: dict[str, Any] = {"exit_code": 0} if state == "succeeded" else {"stopped": True, "signal": 15}
        rows = tuple(row if row.ended else replace(row, ended=ended, **how) for row in self.record.ranks)
        code = 0 if state == "succeeded" else 1
        self.save(replace(self.record, state=state, ended=ended, ranks=rows, **{"exit_code": code, **more}))


def make_run(place: Path, ranks: int, hosts: int = 1, **more: Any) -> MadeRun:
    """Make the folder of a run that is going on, with so many ranks."""
    return MadeRun(RunFolder(place / "big"), new_record(ranks, hosts, **more))
