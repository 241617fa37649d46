"""Looking at a thousand runs: what `mslaunch ps` takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.measure import MSLAUNCH, Row, medians, seconds
from mslaunch.documents.schema import RunStatus
from mslaunch.run import record
from mslaunch.run.launchers import this_process
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import RankRecord, RunRecord

RUNS, RANKS = 1000, 8
LIMIT = 0.3
COMMANDS = ((), ("--all",), ("--state", "failed"))


def make_runs(runs_dir: Path) -> None:
    """Make the records of runs that are over, one in five of them failed."""
    launcher = this_process()
    for number in range(RUNS):
        folder = RunFolder(runs_dir / f"run-{number:04d}")
        folder.path.mkdir(parents=True)
        began = time.time() - 3600.0 * (RUNS - number)
        times = (record.iso(began), record.iso(began + 60))
        state: RunStatus = "succeeded" if number % 5 else "failed"
        ranks = tuple(RankRecord(rank, "localhost", rank, 1000 + rank, 0, None, *times) for rank in range(RANKS))
        made = RunRecord(folder.run_id, state, *times, launcher, RANKS, "dynamic", "local", "train.py", ranks)
        record.save(folder, made)
        folder.plan.write_text("{}")


def thousand_runs() -> Iterator[Row]:
    """Each command several times in turn; the first look, which reads every record, is a row of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_runs(folder / "mslaunch-runs")
        env = {"XDG_STATE_HOME": str(folder / "state")}
        first = seconds([MSLAUNCH, "ps", "--all"], folder, env)
        yield Row(f"ps --all, {RUNS} runs, first time", f"{first:.2f} s", "", first, 2 * LIMIT, "s")
        taken = medians({command: partial(seconds, [MSLAUNCH, "ps", *command], folder, env) for command in COMMANDS})
        for command, median in taken.items():
            yield Row(" ".join(("ps", *command, f"{RUNS} runs")), f"{median:.2f} s", "", median, LIMIT, "s")
