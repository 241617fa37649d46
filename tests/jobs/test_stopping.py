"""Stopping with real processes: signals, kills, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mslaunch.shared.guard import processes_with
from tests.conftest import Bench, wait_for

WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_everything_first(bench: Bench, number: int, code: int) -> None:
    """Ctrl-C, SIGTERM and SIGHUP end all ranks, write the record and give the signal's exit code."""
    bench.write("train.py", WAIT)
    process = bench.start("train", "-n", "2")
    wait_for(lambda: len(bench.leftovers()) == 2 and bench.log(1) == "ready\n", "both ranks")
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == code, output
    assert bench.record()["state"] == "stopped"
    assert bench.leftovers() == []


def test_a_rank_that_ignores_sigterm_is_ended_after_the_grace(bench: Bench) -> None:
    """So are grandchildren that went into a session of their own."""
    bench.write(
        "train.py",
        "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'\n"
        "subprocess.Popen([sys.executable, '-c', child], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(60)\n",
    )
    bench.write("cfg.yaml", "launch:\n  grace: 0.5\n")
    process = bench.start("train", "-n", "2", "-c", "cfg.yaml")
    wait_for(lambda: len(bench.leftovers()) == 4, "ranks and their children")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert [rank["signal"] for rank in bench.record()["ranks"]] == [9, 9]
    assert bench.leftovers() == []


def test_a_second_interrupt_does_not_wait(bench: Bench) -> None:
    """The first Ctrl-C asks a rank that goes on all the same, with an hour's grace; the second one kills it."""
    bench.write(
        "train.py",
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "print('ready', flush=True)\nwhile True: time.sleep(60)\n",
    )
    bench.write("cfg.yaml", "launch:\n  grace: 3600\n")
    process = bench.start("train", "-n", "1", "-c", "cfg.yaml")
    wait_for(lambda: bench.leftovers() and bench.log(0) == "ready\n", "the rank")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: bench.log(0) == "ready\nasked\n", "the first signal")
    assert len(bench.leftovers()) == 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [rank["signal"] for rank in bench.record()["ranks"]] == [signal.SIGKILL]
    assert bench.log(0) == "ready\nasked\n"


def test_processes_left_by_a_rank_are_ended_with_the_run(bench: Bench) -> None:
    """A job that succeeds leaves nothing behind either."""
    bench.write(
        "train.py",
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n",
    )
    assert bench.mslaunch("train", "-n", "2").returncode == 0
    assert bench.leftovers() == []


def test_killing_the_launcher_ends_the_run(bench: Bench) -> None:
    """kill -9: the agent notices that its input has closed; `ps` then shows the run as lost."""
    bench.write("train.py", WAIT)
    process = bench.start("train", "-n", "2")
    wait_for(lambda: len(bench.leftovers()) == 2, "both ranks")
    process.kill()
    process.wait()
    wait_for(lambda: not bench.leftovers(), "the ranks to end")
    assert "lost" in bench.mslaunch("ps").stdout
    lost = json.loads(bench.mslaunch("status", "--json").stdout)
    assert (lost["state"], [rank["ended"] for rank in lost["ranks"]]) == ("lost", [lost["ended"]] * 2)


def test_killing_the_agent_ends_the_run(bench: Bench) -> None:
    """kill -9 of the agent: its ranks die, the guard finds their grandchildren, the launcher says 125."""
    bench.write(
        "train.py",
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "time.sleep(60)\n",
    )
    process = bench.start("train", "-n", "2")
    wait_for(lambda: len(bench.leftovers()) == 4, "ranks and their children")
    hello = json.loads((bench.latest / "events.jsonl").read_text().splitlines()[1])
    os.kill(hello["pid"], signal.SIGKILL)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 125, output
    assert "the agent on localhost is gone" in output
    assert all(rank["ended"] for rank in bench.record()["ranks"])
    assert "running" not in bench.mslaunch("status").stdout
    wait_for(lambda: not bench.leftovers(), "the guard to finish")


def test_a_rank_of_a_run_that_is_over_does_not_wait(bench: Bench) -> None:
    """launch.setup failed, so none was started: the record gives them the end of the run."""
    bench.write("train.py", WAIT)
    done = bench.mslaunch("train", "-n", "2", "--set", "launch.setup=exit 7")
    assert done.returncode == 3, done.stderr
    record = bench.record()
    assert [(rank["started"], rank["ended"]) for rank in record["ranks"]] == [(None, record["ended"])] * 2
    assert bench.mslaunch("status").stdout.count("not started") == 2


def test_two_runs_do_not_touch_each_other(bench: Bench) -> None:
    """Stopping one leaves the other alone."""
    bench.write("train.py", WAIT)
    first, second = (bench.start("train", "-n", "2", "--run-id", name) for name in ("one", "two"))
    wait_for(lambda: len(bench.leftovers()) == 4, "both runs")
    assert bench.mslaunch("stop", "one").returncode == 0
    first.communicate(timeout=60)
    assert second.poll() is None
    assert len(bench.leftovers()) == 2
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=60)


def test_no_process_of_a_finished_run_is_found() -> None:
    """The search for leftovers finds a process that carries a run's id, and only that."""
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={"MSLAUNCH_RUN_ID": "probe-1"}
    )
    try:
        assert wait_for(lambda: processes_with("MSLAUNCH_RUN_ID=probe-1"), "the sleeper") == [sleeper.pid]
        assert processes_with("MSLAUNCH_RUN_ID=probe") == []
    finally:
        sleeper.kill()
        sleeper.wait()


IGNORES = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(1000)
"""


def test_a_stopped_agent_does_not_make_its_launcher_unstoppable(bench: Bench) -> None:
    """It is given up some seconds after the grace, and what it ran is ended without it."""
    bench.write("train.py", IGNORES)
    launcher = bench.start("train", "-n", "2", "--set", "launch.grace=0.1")
    wait_for(lambda: bench.runs.exists() and bench.log(0) == bench.log(1) == "up\n", "both ranks to be up")
    rank = next(json.loads(line) for line in (bench.latest / "events.jsonl").open() if '"started"' in line)["pid"]
    os.kill(psutil.Process(rank).ppid(), signal.SIGSTOP)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=150) in (125, 143)
    wait_for(lambda: not bench.leftovers(), "nothing to be left")
