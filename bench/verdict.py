"""How long the verdict takes when many ranks fail together, each with a log of a megabyte."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row
from bench.scale import large_plan
from mslaunch.diagnose.logs.scan import scan_tail
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.explain import make_verdict
from mslaunch.run.paths import RunFolder

SIZE = 1 << 20
CAUSE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: loss is NaN\n'
VICTIM = "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.\n"


def many_fail() -> Iterator[Row]:
    """From the last exit to the verdict: ranks that raised, and ranks that all blame another one."""
    for ranks, limit in ((64, 1.0), (1024, 3.0)):
        for what, end in (("raise", CAUSE), ("wait for others", VICTIM)):
            took = _verdict(ranks, end)
            yield Row(f"{ranks:,} ranks {what}, 1 MB of log each", f"{took:.3f} s", "", took, limit, "s")
    rate = _scan_rate()
    yield Row("scanning one large log, seconds for 100 MB", f"{rate:.0f} MB/s", "", 100 / rate, 1.0, "s")


def training_log(seed: int, size: int = SIZE) -> str:
    """Lines as a training script and MindSpore write them."""
    chance = random.Random(seed)
    lines: list[str] = []
    length = 0
    while length < size:
        step = len(lines)
        line = (
            f"epoch: {step // 1000 + 1} step: {step % 1000}, loss is {chance.random():.6f}, lr {chance.random():.3e}\n"
        )
        if step % 10 == 0:
            when = f"2026-11-16-02:{step // 60 % 60:02d}:{step % 60:02d}.{step % 1000:03d}.{seed % 1000:03d}"
            line = (
                f"[WARNING] DISTRIBUTED({seed},7f0a,python):{when} [cluster.cc:{step % 500}] Node {step % 8} is alive\n"
            )
        lines.append(line)
        length += len(line)
    return "".join(lines)


def _verdict(ranks: int, end: str) -> float:
    """Write the logs, tell the run state how the ranks ended, and return how long the verdict took."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        texts = [training_log(seed) for seed in range(8)]
        run_state = RunState(large_plan(folder.path, ranks // 8, 8))
        for rank in range(ranks):
            folder.rank(rank).mkdir()
            folder.log(rank).write_text(texts[rank % 8] + end)
        for rank, record in run_state.ranks.records.items():
            event = {"ev": "exited", "host": record.host, "time": 10.0 + rank / ranks / 2, "role": "worker"}
            run_state.dispatch(event | {"rank": rank, "pid": 1, "code": 1, "signal": None, "asked": False}, 10.0)
        began = time.perf_counter()
        verdict = make_verdict(run_state, folder)
        took = time.perf_counter() - began
        assert verdict is not None
        assert (verdict.rank, len(verdict.also_failed)) == (0, ranks - 1), verdict
        return took


def _scan_rate() -> float:
    """Return how many megabytes a second are scanned on one core."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "log.txt"
        with path.open("w") as file:
            for seed in range(64):
                file.write(training_log(seed))
        scan_tail(path, SIZE)
        began = time.process_time()
        scan_tail(path, 1 << 30)
        return path.stat().st_size / 1e6 / (time.process_time() - began)
