"""Silence is blamed on the peer only if this process ran, and looked, all the while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mslaunch.agent import wire
from mslaunch.agent.running_clock import LONGEST_TURN, RunningClock
from mslaunch.transports.prestart import AGENT
from tests.conftest import ROOT, Bench, wait_for

PATIENT = "launch:\n  lost_after: 5\n  config_arg: null\n"
LONGER = 7.0
WAITS = "import time\nwhile not __import__('os').path.exists('{flag}'): time.sleep(0.1)\nprint('done')\n"


def test_time_in_which_the_process_did_not_run_does_not_count() -> None:
    """A turn that took an hour counts as one turn; usual turns count as they are."""
    times = iter([0.0, 0.5, 1.0, 3601.0, 3601.5])
    clock = RunningClock(lambda: next(times))
    assert [clock.advance() for _ in range(4)] == [0.5, 1.0, 1.0 + LONGEST_TURN, 1.5 + LONGEST_TURN]


def test_ctrl_z_pauses_the_launcher_and_not_the_job(bench: Bench) -> None:
    """For longer than launch.lost_after; the ranks go on meanwhile, and all ends well after `fg`."""
    flag = bench.folder.parent / "flag"
    bench.write("train.py", WAITS.format(flag=flag))
    bench.write("cfg.yaml", PATIENT)
    launcher = bench.start("train", "-n", "2", "-c", "cfg.yaml")
    wait_for(lambda: len(bench.leftovers()) == 2, "the ranks")
    launcher.send_signal(signal.SIGTSTP)
    wait_for(lambda: psutil.Process(launcher.pid).status() == psutil.STATUS_STOPPED, "the launcher to stop")
    time.sleep(LONGER)
    assert len(bench.leftovers()) == 2
    launcher.send_signal(signal.SIGCONT)
    flag.touch()
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0


def test_a_job_that_is_suspended_as_a_whole_goes_on_when_it_is_resumed(far: Bench) -> None:
    """As `scontrol suspend` and `resume` do it: launcher, agents and ranks stop and continue."""
    flag = far.folder.parent / "flag"
    far.write("train.py", WAITS.format(flag=flag))
    far.write("cfg.yaml", PATIENT)
    launcher = far.start("train", "--hosts", "n1:1,n2:1", "-c", "cfg.yaml")
    ranks = wait_for(lambda: found if len(found := far.leftovers()) == 2 else None, "the ranks")
    everything = [launcher.pid, *(psutil.Process(rank).ppid() for rank in ranks), *ranks]
    for pid in everything:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LONGER)
    for pid in everything:
        os.kill(pid, signal.SIGCONT)
    flag.touch()
    out, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, out


def test_starting_many_ranks_does_not_stop_the_agents_loop(tmp_path: Path) -> None:
    """An agent that starts a thousand processes answers its launcher in between."""
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", AGENT, str(ROOT), "h"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.stdin
    assert agent.stdout
    planned: dict[str, Any] = {"role": "worker", "argv": ["/bin/true"], "env": {}, "cwd": "/", "start": "now"}
    order: dict[str, Any] = {"run_dir": str(tmp_path), "attempt": 0, "env": {}, "unset": [], "secrets": {}, "tail": []}
    order |= {"lost_after": 30.0, "grace": 1.0, "answers": True, "setup": None, "sync": None, "stdin": None}
    order |= {"metrics": None, "device_files": None, "reports_launchers": False}
    order["processes"] = [{**planned, "rank": rank, "log": str(tmp_path / f"rank_{rank}/log")} for rank in range(1000)]
    with agent:
        agent.stdin.write(wire.MAGIC + wire.encode({"to": "h", "do": "run", **order}))
        for _ in range(3):
            agent.stdin.write(wire.encode({"to": "h", "do": "ping"}))
        agent.stdin.flush()
        decoder = wire.Decoder()
        events: list[str] = []
        while events.count("started") < 1000:
            events += [event["ev"] for event in decoder.feed(os.read(agent.stdout.fileno(), 65536))]
        agent.stdin.write(wire.encode({"to": "h", "do": "bye"}))
    assert events.index("pulse") < events.index("started") + 999
