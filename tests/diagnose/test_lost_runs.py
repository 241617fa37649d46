"""`mslaunch diagnose` for a run whose launcher was killed and could give no verdict."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mslaunch.run import liveness, record
from mslaunch.text import elapsed_words
from tests.beds.past_runs import make_running
from tests.conftest import Bench, wait_for

FAILS = """import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK_ID"] == "1":
    while not os.path.exists("../../rank_0/work/ready"):
        time.sleep(0.02)
    raise ValueError("loss is NaN")
open("ready", "w").close()
time.sleep(600)
"""


def test_a_lost_run_is_judged_by_its_logs(bench: Bench) -> None:
    """The rank that had failed is named with its words, its exit code and its traceback; the other is a victim."""
    bench.write("train.py", FAILS)
    bench.write("cfg.yaml", "launch:\n  grace: 600\n  config_arg: null\n")
    process = bench.start("train", "-n", "2", "-c", "cfg.yaml", "--tail", "none")
    wait_for(
        lambda: bench.leftovers() and bench.record()["ranks"][1]["exit_code"] == 1,
        "the failure to be on record",
    )
    process.kill()
    process.wait()
    wait_for(lambda: not bench.leftovers(), "the other rank to end")
    assert json.loads(bench.mslaunch("status", "--json").stdout)["state"] == "lost"
    done = bench.mslaunch("diagnose", "--json")
    verdict = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (verdict["rank"], verdict["host"], verdict["exit_code"]) == (1, "localhost", 1)
    assert (verdict["cause"], verdict["summary"]) == ("exception", "ValueError: loss is NaN")
    assert verdict["traceback"].splitlines()[-1] == "ValueError: loss is NaN"
    assert verdict["victims"] == [0]
    told = bench.mslaunch("diagnose").stdout
    assert "First to fail: rank 1, host localhost, device 1 (exit code 1)\n" in told
    assert "ValueError: loss is NaN\n" in told


def test_a_lost_run_whose_ranks_were_well_blames_none_of_them(bench: Bench) -> None:
    """Its launcher was killed, and that is what is said."""
    bench.write("train.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    process = bench.start("train", "-n", "2")
    wait_for(lambda: bench.leftovers() and bench.log(0) and bench.log(1), "both ranks")
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not bench.leftovers(), "the ranks to end")
    done = bench.mslaunch("diagnose")
    assert done.returncode == 0, done.stderr
    why = "its launcher was killed, and its ranks were ended then; their logs show no failure of their own"
    assert done.stdout == f"{bench.latest.name}: {why}\n"
    assert bench.mslaunch("diagnose", "--json").stdout == "null\n"


def test_the_time_of_a_lost_run_ends_with_its_last_sign_of_life(tmp_path: Path) -> None:
    """The newest of its record, events, numbers and logs; it does not grow while nobody runs it."""
    run = make_running(tmp_path)
    running = record.read(run)
    assert running.launcher
    record.save(run, replace(running, launcher=replace(running.launcher, start_time=1)))
    began = datetime.fromisoformat(running.started).timestamp()
    for file, seconds in ((run.record, 20.0), (run.log(0), 30.0), (run.log(1), 3725.0)):
        os.utime(file, (began, began + seconds))
    lost = liveness.current(run)
    assert (lost.state, lost.ended) == ("lost", record.iso(began + 3725.0))
    assert elapsed_words(lost.seconds_taken(datetime.now().astimezone())) == "1:02:05"
