"""Verbs find runs of other folders than ./mslaunch-runs, and hints name the folder."""

from __future__ import annotations

import json
import subprocess

from tests.conftest import MSLAUNCH, Bench, wait_for

DONE = "print('done')\n"
WAITING = "import time\ntime.sleep(120)\n"


def test_the_hint_of_a_detached_run_names_its_folder(bench: Bench) -> None:
    """As typed, it follows the run; the default folder is not named."""
    bench.write("t.py", DONE)
    done = bench.mslaunch(
        "msrun", "--worker_num=1", "--local_worker_num=1", "--log_dir=logs dir", "--join=False", "t.py"
    )
    assert done.returncode == 0, done.stderr
    hint = done.stdout.partition("Follow it with: ")[2].strip()
    assert hint.endswith("--runs-dir 'logs dir'")
    followed = subprocess.run(["bash", "-c", hint.replace("mslaunch", MSLAUNCH, 1)], cwd=bench.folder, env=bench.env)
    assert followed.returncode == 0
    plain = bench.mslaunch("train", "-n", "1", "--detach", "--run-id", "d", "t.py")
    assert plain.stdout.endswith("mslaunch attach d\n")
    assert bench.mslaunch("attach", "d").returncode == 0


def test_stop_finds_the_newest_run_below_and_says_where(bench: Bench) -> None:
    """An older run of the default folder is not answered with while the job goes on elsewhere."""
    bench.write("t.py", DONE)
    bench.write("w.py", WAITING)
    bench.mslaunch("train", "-n", "1", "--run-id", "old", "t.py")
    started = bench.mslaunch("train", "-n", "1", "--runs-dir", "logs", "--detach", "--run-id", "new", "w.py")
    assert started.returncode == 0, started.stderr
    wait_for(bench.leftovers, "the rank")
    done = bench.mslaunch("stop")
    assert (done.stdout, done.stderr) == ("new: stopped\n", "mslaunch: new is in logs\n")
    assert bench.leftovers() == []


def test_stop_all_stops_runs_of_folders_below(bench: Bench) -> None:
    """One that is not in the default folder is called by its path."""
    bench.write("w.py", WAITING)
    for name, folder in (("a", "mslaunch-runs"), ("b", "logs")):
        bench.mslaunch("train", "-n", "1", "--runs-dir", folder, "--detach", "--run-id", name, "w.py")
    done = bench.mslaunch("stop", "--all")
    assert done.stdout.splitlines() == ["a: stopped", f"{bench.folder}/logs/b: stopped"]
    assert bench.leftovers() == []


def test_a_name_that_fits_in_two_folders_is_refused_with_both_paths(bench: Bench) -> None:
    """And --runs-dir decides."""
    bench.write("t.py", DONE)
    for folder in ("mslaunch-runs", "logs"):
        bench.mslaunch("train", "-n", "1", "--runs-dir", folder, "--run-id", "same", "t.py")
    done = bench.mslaunch("status", "same")
    assert done.returncode == 2
    assert f"{bench.folder}/mslaunch-runs/same, {bench.folder}/logs/same). Name one by its path." in done.stderr
    assert bench.mslaunch("status", "same", "--runs-dir", "logs").returncode == 0


def test_inside_a_folder_of_runs_its_runs_are_found(bench: Bench) -> None:
    """Also inside a run's own folder."""
    bench.write("t.py", DONE)
    bench.mslaunch("train", "-n", "1", "--runs-dir", "logs", "--run-id", "one", "t.py")
    for place in ("logs", "logs/one", "logs/one/rank_0"):
        done = subprocess.run(
            [MSLAUNCH, "status", "--json"], cwd=bench.folder / place, env=bench.env, capture_output=True, text=True
        )
        assert json.loads(done.stdout)["run_id"] == "one", done.stderr


def test_a_folder_that_is_named_is_the_only_one(bench: Bench) -> None:
    """MSLAUNCH_RUNS_DIR is a decision; so is --runs-dir."""
    bench.write("t.py", DONE)
    bench.mslaunch("train", "-n", "1", "--runs-dir", "logs", "--run-id", "one", "t.py")
    for done in (
        bench.mslaunch("status", MSLAUNCH_RUNS_DIR="elsewhere"),
        bench.mslaunch("status", "--runs-dir", "elsewhere"),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert "elsewhere: no runs here yet" in done.stderr


def test_runs_that_a_rank_has_launched_are_not_meant(bench: Bench) -> None:
    """The newest run is the job, not what one of its ranks started in its folder."""
    bench.write("t.py", DONE)
    bench.write(
        "outer.py",
        f"import os, subprocess\nsubprocess.run([{MSLAUNCH!r}, 'train', '-n', '1', '--run-id', 'inner', 't.py'], "
        "check=True)\n",
    )
    done = bench.mslaunch("train", "-n", "1", "--run-id", "outer", "outer.py")
    assert done.returncode == 0, done.stdout
    assert list(bench.runs.glob("outer/rank_0/**/inner/run.json")) != []
    assert bench.mslaunch("status").stdout.startswith("outer: succeeded")


def test_the_runs_of_a_project_below_are_not_meant(bench: Bench) -> None:
    """In a folder that holds projects, `stop` and `status` do not take the newest run of any of them."""
    bench.write("project/train.py", "")
    command = [bench.program, "train", "-n", "1"]
    subprocess.run(command, cwd=bench.folder / "project", env=bench.env, check=True, capture_output=True)
    done = bench.mslaunch("status")
    assert (done.returncode, "no runs here yet" in done.stderr) == (2, True)
