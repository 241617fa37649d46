"""`mslaunch sweep` on a real Slurm: one job array, followed, cancelled, resumed."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from tests.beds.slurm_bed import Slurm
from tests.conftest import MSLAUNCH, Bench, wait_for

SWEEP = ("sweep", "--transport", "slurm", "--config", "cfg.yaml", "--workers", "1", "--run-id", "s")
TRAIN = """import json, os, sys, time
seed = json.load(open(os.environ["MSLAUNCH_CONFIG"]))["seed"]
print(f"epoch: 1 step: 1, loss is {seed}", flush=True)
"""
FAILS = TRAIN + "if seed == 2: sys.exit(7)\n"


@pytest.fixture
def job(site: Bench) -> Bench:
    site.write("cfg.yaml", "seed: 1\nlaunch: {grace: 2}\n")
    site.write("train.py", TRAIN)
    return site


def states(bench: Bench) -> dict[str, Any]:
    return {run["name"]: run["state"] for run in json.loads(bench.mslaunch("ps", "--json").stdout)}


def queued(slurm: Slurm, what: str = "%i") -> list[str]:
    return slurm.run("squeue", "-h", "--array", "-o", what).stdout.split()


def test_a_sweep_is_one_job_array(job: Bench) -> None:
    """Member i runs combination i in a folder of its own; the table is the same as on one machine."""
    job.write("train.py", FAILS)
    done = job.mslaunch(*SWEEP, "--set", "seed=1..3", "--at-once", "2")
    assert done.returncode == 7, done.stdout + done.stderr
    array = (job.runs / "s/slurm_job").read_text()
    assert f"mslaunch: Slurm job {array}; Ctrl-C cancels it" in done.stdout
    assert "#SBATCH --array=0-2%2\n" in (job.runs / "s/array.sbatch").read_text()
    assert [(job.runs / "s" / run / "slurm_job").read_text() for run in "123"] == [f"{array}_{i}" for i in range(3)]
    rows = [line.split() for line in done.stdout.splitlines()[-3:]]
    assert [(row[0], row[1], row[2], row[-2], row[-1]) for row in rows] == [
        ("1", "succeeded", "0", "1", "s/1"),
        ("2", "failed", "7", "2", "s/2"),
        ("3", "succeeded", "0", "3", "s/3"),
    ]
    assert "succeeded" in (job.runs / "s/3/launcher.log").read_text()
    assert states(job) == {"s/1": "succeeded", "s/2": "failed", "s/3": "succeeded"}


def test_ctrl_c_cancels_the_array(job: Bench, slurm: Slurm) -> None:
    """Runs that are under way are stopped in order, those that wait are taken off the queue, and it is resumed."""
    job.write("train.py", TRAIN + "time.sleep(100)\n")
    watching = job.start(*SWEEP, "--set", "seed=1..3", "--at-once", "1")
    wait_for(lambda: "loss is 1" in _log(job, "1"), "the first run to be under way", 60)
    assert states(job) == {"s/1": "running", "s/2": "queued", "s/3": "queued"}
    alive = job.mslaunch("sweep", "--resume", "s")
    assert (alive.returncode, "s is still under way" in alive.stderr) == (2, True)
    watching.send_signal(signal.SIGINT)
    output, _ = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert [line.split()[1] for line in output.splitlines()[-3:]] == ["stopped"] * 3
    wait_for(lambda: not queued(slurm), "the queue to be empty")
    assert states(job) == {"s/1": "stopped", "s/2": "stopped", "s/3": "stopped"}
    job.write("train.py", TRAIN)
    again = job.mslaunch("sweep", "--resume", "s")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [line.split()[-1] for line in again.stdout.splitlines()[-3:]] == ["s/1.2", "s/2.2", "s/3.2"]


def _log(bench: Bench, run: str) -> str:
    path = bench.runs / "s" / run / "rank_0/log.txt"
    return path.read_text() if path.exists() else ""


def test_a_detached_array_is_stopped_by_its_sweep_s_name(job: Bench, slurm: Slurm) -> None:
    """`mslaunch stop SWEEP/RUN` ends one run, `mslaunch stop SWEEP` all that are left."""
    done = job.mslaunch(*SWEEP, "--set", "seed=1..3", "--detach", "--sbatch-arg=--hold", "--json")
    assert json.loads(done.stdout)["job"] == (job.runs / "s/slurm_job").read_text(), done.stderr
    assert len(queued(slurm)) == 3
    assert job.mslaunch("stop", "s/2").stdout == "s/2: stopped\n"
    assert len(queued(slurm)) == 2
    assert job.mslaunch("stop", "s").stdout == "s: stopped\n"
    wait_for(lambda: not queued(slurm), "the queue to be empty")
    assert set(states(job).values()) == {"stopped"}


def test_runs_whose_submitter_was_killed_are_found_by_the_sweep_s_name(job: Bench, slurm: Slurm) -> None:
    """Their ids were never written down."""
    job.mslaunch(*SWEEP, "--set", "seed=1..2", "--detach", "--sbatch-arg=--hold")
    for path in job.runs.glob("s/**/slurm_job"):
        path.unlink()
    assert states(job) == {"s/1": "queued", "s/2": "queued"}
    assert (job.runs / "s/2/slurm_job").read_text() == queued(slurm)[1]
    assert job.mslaunch("stop", "s").returncode == 0


def test_inside_an_allocation_runs_go_one_at_a_time(job: Bench) -> None:
    """Its nodes are used as they are, and nothing is submitted."""
    words = ["salloc", "--quiet", "-N1", MSLAUNCH, "sweep", "--config", "cfg.yaml", "-n", "2", "--set", "seed=1..2"]
    done = subprocess.run(words, cwd=job.folder, env=job.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    assert ["started" in line for line in lines] == [True, False, True, False]
    assert set(states(job).values()) == {"succeeded"}


def test_what_an_array_cannot_do_is_refused(job: Bench, slurm: Slurm) -> None:
    """Members that ask for different things, and an array that Slurm refuses: nothing is left behind."""
    args = ("sweep", "--transport", "slurm", "--config", "cfg.yaml", "--run-id", "s")
    differing = job.mslaunch(*args, "--set", "launch.workers=1,2")
    assert (differing.returncode, "--ntasks=2" in differing.stderr) == (2, True)
    refused = job.mslaunch(*SWEEP, "--set", "seed=1..2", "--partition", "nix")
    assert (refused.returncode, "sbatch refuses" in refused.stderr) == (3, True)
    assert queued(slurm) == []
    assert not (job.runs / "s").exists()
