"""What is told of a running job, once: a loss that is not finite, a rank with too little CPU, one that is stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Bench, wait_for

# Steps end together, as after a collective: the step times of all ranks are equal, whoever is slow.
STEPS = """
import os, time
rank, world, run = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"]), os.environ["MSLAUNCH_RUN_DIR"]
for step in range(1, 100_000):
    began = time.process_time()
    while time.process_time() - began < 0.02:
        pass
    print(f"epoch: 1 step: {step}, loss is {'nan' if (rank, step) == (2, 5) else 1 / step}", flush=True)
    open(f"{run}/{step}_{rank}", "w").close()
    while not all(os.path.exists(f"{run}/{step}_{other}") for other in range(world)):
        time.sleep(0.005)
"""
GROUP = Path("/sys/fs/cgroup/cpu")  # of version 1; what limits a process is not what is tested here


@contextmanager
def throttled(pid: int, share: float) -> Iterator[None]:
    """Let a process have this share of a core."""
    group = GROUP / f"mslaunch-test-{pid}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(int(100_000 * share)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (GROUP / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def status_of(bench: Bench) -> dict[str, Any]:
    """How the run stands; nothing before there is one."""
    done = bench.mslaunch("status", "--json")
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"notes": [], "ranks": []}


def pid_of(bench: Bench, rank: int) -> int:
    return int(status_of(bench)["ranks"][rank]["pid"])


def is_told(bench: Bench, text: str) -> bool:
    return any(text in note for note in status_of(bench)["notes"])


@pytest.mark.skipif(not os.access(GROUP / "cgroup.procs", os.W_OK), reason="no control group for CPU time can be made")
def test_slow_and_stopped_ranks_and_a_loss_that_is_nan_are_told(bench: Bench) -> None:
    """Each of the right rank, while the job goes on; nothing of the others."""
    bench.write("train.py", STEPS)
    job = bench.start("train", "-n", "3", "--tail", "none")
    wait_for(lambda: is_told(bench, "rank 2 on localhost: loss is nan at step 5"), "the loss to be told")
    with throttled(pid_of(bench, 1), 0.05):
        wait_for(lambda: is_told(bench, "rank 1 on localhost gets too little CPU"), "the slow rank to be told")
    os.kill(pid_of(bench, 0), signal.SIGSTOP)
    wait_for(lambda: is_told(bench, "rank 0 on localhost is stopped"), "the stopped rank to be told")
    told = status_of(bench)["notes"]
    job.send_signal(signal.SIGINT)
    assert job.wait(timeout=60) == 130
    assert len([note for note in told if note.startswith("rank ")]) == 3, told


def test_a_loss_that_is_nan_ends_the_job_where_that_is_asked(bench: Bench) -> None:
    """launch.on_nan: stop; the verdict names the rank and the step."""
    bench.write("train.py", STEPS)
    bench.write("cfg.yaml", "launch:\n  on_nan: stop\n  config_arg: null\n")
    done = bench.mslaunch("train", "-n", "3", "--config", "cfg.yaml", "--tail", "none")
    assert done.returncode == 1
    assert "loss is nan at step 5 (launch.on_nan)" in done.stdout
    assert "First to fail: rank 2" in done.stdout


def test_the_end_of_a_job_tells_that_its_loss_is_nan(bench: Bench) -> None:
    """It has succeeded by its exit code, and has learned nothing since: the screen, the record and the lists say so."""
    bench.write("train.py", "for i in range(1, 41): print(f'step {i}: loss={1 / i if i < 20 else float(\"nan\")}')\n")
    done = bench.mslaunch("train", "-n", "2")
    assert done.returncode == 0, done.stderr
    end = done.stdout.rpartition("[rank ")[2]
    warning = "warning: loss is nan since step 20 (ranks 0-1)\n"
    assert end.endswith(f"mslaunch: {warning}")
    assert warning in bench.mslaunch("diagnose").stdout
    assert warning in bench.mslaunch("status").stdout
    assert "loss not finite" in bench.mslaunch("ps").stdout
    assert bench.record()["warnings"] == [
        {"kind": "loss not finite", "text": "loss is nan since step 20 (ranks 0-1)"},
    ]


def test_a_loss_that_was_nan_for_a_while_is_not_told_at_the_end(bench: Bench) -> None:
    """As with a scaled loss, whose first steps may overflow."""
    bench.write("train.py", "for i in range(1, 9): print(f'step {i}: loss={1 / i if i != 3 else float(\"nan\")}')\n")
    done = bench.mslaunch("train", "-n", "1")
    assert "loss is nan at step 3" in done.stdout
    assert "warning:" not in done.stdout
    assert bench.record()["warnings"] == []
