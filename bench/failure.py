"""How soon a failure is named, whether it is the right one, and what a flood of output costs."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.measure import BIN, MSLAUNCH, Row, workplace
from bench.startup import msrun

RAISES = """
import os, time
import mindspore as ms
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
if get_rank() == 1:
    open(os.environ["DIED"], "w").write(str(time.time()))
    raise ValueError("loss is NaN")
time.sleep(300)
"""
EARLY = """
import os, time
if os.environ["RANK_ID"] == "1":
    open(os.environ["DIED"], "w").write(str(time.time()))
    raise FileNotFoundError("dataset/train.rec")
import mindspore as ms
from mindspore.communication import init

init()
"""
ONE_OF_MANY = """
import os, sys, time
if os.environ["RANK_ID"] == os.environ["CULPRIT"]:
    raise ValueError("it was me")
time.sleep(60)
"""
FLOOD = "line = 'x' * 99\nfor i in range(2_000_000): print(line)\n"


def death() -> Iterator[Row]:
    """From the exception in a rank to the end of the command, the verdict printed and everything stopped."""
    with workplace(raises=RAISES, early=EARLY) as folder:
        ours = statistics.median(delay([MSLAUNCH, "train", "-n", "2", "raises.py"], folder) for _ in range(5))
        early = statistics.median(delay([MSLAUNCH, "train", "-n", "2", "early.py"], folder) for _ in range(5))
        theirs = delay(msrun("raises.py"), folder)
    yield Row("death of a rank → verdict printed", f"{ours:.2f} s", "", ours, 1.0, "s")
    yield Row("rank dies before init() → verdict printed", f"{early:.2f} s", "", early, 1.0, "s")
    yield Row("the same, beside msrun", f"{ours:.2f} s", f"msrun {theirs:.2f} s", ours / theirs, 0.05)


def delay(command: list[str], folder: Path, home: Path | None = None) -> float:
    """Run a command that fails; return the time from the death of its rank to its own end."""
    died = folder / "died"
    env = {**os.environ, "GLOG_v": "3", "PATH": f"{BIN}:{os.environ['PATH']}", "DIED": str(died)}
    env |= {"HOME": str(home)} if home else {}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False, timeout=300)
    ended = time.time()
    if done.returncode == 0:
        raise RuntimeError(f"{command[0]} did not notice the failure")
    return ended - float(died.read_text())


def right_rank() -> Iterator[Row]:
    """256 ranks, one of them raises: is it the one that is named, every time?"""
    wrong = 0
    with workplace(many=ONE_OF_MANY) as folder:
        for _ in range(50):
            culprit = str(random.randrange(256))
            command = [
                MSLAUNCH,
                "train",
                "-n",
                "256",
                "--json",
                "--tail",
                "none",
                "--env",
                f"CULPRIT={culprit}",
                "many.py",
            ]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
            wrong += f'"rank": {culprit},\n  "host": "localhost",\n  "exit_code": 1' not in done.stdout
    yield Row("256 ranks, one fails: wrong rank named in 50", f"{wrong} wrong", "", wrong, 0, "runs")


def flood() -> Iterator[Row]:
    """A rank writes 200 MB: every line is in its log, and launcher, agent and guard stay small."""
    with workplace(flood=FLOOD) as folder:
        launcher = psutil.Popen(
            [MSLAUNCH, "train", "-n", "1", "--run-id", "r", "flood.py"], cwd=folder, stdout=subprocess.DEVNULL
        )
        peak = 0.0
        while launcher.poll() is None:
            peak = max(peak, _memory(launcher))
            time.sleep(0.02)
        lines = (folder / "mslaunch-runs" / "r" / "rank_0" / "log.txt").read_bytes().count(b"x" * 99 + b"\n")
    yield Row("200 MB of output: launcher + agent, peak", f"{peak:.0f} MB", "", peak, 150, "MB")
    yield Row("200 MB of output: lines lost", f"{2_000_000 - lines}", "", 2_000_000 - lines, 0, "lines")


def _memory(launcher: psutil.Popen) -> float:
    total = 0
    try:
        agents = [c for c in launcher.children(recursive=True) if "mslaunch.agent.main" in " ".join(c.cmdline())]
        total = sum(process.memory_info().rss for process in (launcher, *agents))
    except psutil.Error:
        pass  # it has just ended
    return total / 1e6
