"""How long it takes to start and end a job, and what it costs in memory."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench.measure import MSLAUNCH, MSRUN, TORCHRUN, Row, medians, seconds, workplace

ALL_REDUCE = """
import mindspore as ms
from mindspore import ops
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
assert float(ops.AllReduce()(ms.Tensor([get_rank() + 1.0]))[0]) == 3.0
"""
SHELL_LOOP = 'for i in $(seq {n}); do "{python}" noop.py & done; wait'
_ports = itertools.count(21000)


def msrun(script: str) -> list[str]:
    # A fresh port each time: msrun leaves the last one in TIME_WAIT.
    options = [
        "--worker_num=2",
        "--local_worker_num=2",
        "--join=True",
        "--log_dir=msrun",
        f"--master_port={next(_ports)}",
    ]
    return [MSRUN, *options, script]


def _torchrun(ranks: int) -> list[str]:
    return [TORCHRUN, f"--nproc_per_node={ranks}", f"--master_port={next(_ports)}", "noop.py"]


def two_ranks() -> Iterator[Row]:
    with workplace(noop="pass\n") as folder:
        commands = {
            "mslaunch": lambda: seconds([MSLAUNCH, "train", "-n", "2", "noop.py"], folder),
            "msrun": lambda: seconds(msrun("noop.py"), folder),
        }
        if shutil.which(TORCHRUN):
            commands["torchrun"] = lambda: seconds(_torchrun(2), folder)
        took = medians(commands)
    for peer, limit in (("msrun", 0.20), ("torchrun", 0.30)):
        if peer in took:
            yield _ratio("no-op job, 2 ranks", took, peer, limit)


def many_ranks() -> Iterator[Row]:
    with workplace(noop="pass\n") as folder:
        loop = SHELL_LOOP.format(n=32, python=sys.executable)
        commands = {
            "mslaunch": lambda: seconds([MSLAUNCH, "train", "-n", "32", "noop.py"], folder),
            "shell loop": lambda: seconds(["bash", "-c", loop], folder),
        }
        if shutil.which(TORCHRUN):
            commands["torchrun"] = lambda: seconds(_torchrun(32), folder)
        took = medians(commands)
    if "torchrun" in took:
        yield _ratio("no-op job, 32 ranks", took, "torchrun", 0.40)
    over = took["mslaunch"] - took["shell loop"]
    peer = f"shell loop {took['shell loop']:.2f} s"
    yield Row("no-op job, 32 ranks, over a shell loop", f"{took['mslaunch']:.2f} s", peer, over, 0.6, "s")


def real_job() -> Iterator[Row]:
    with workplace(reduce=ALL_REDUCE) as folder:
        took = medians(
            {
                "mslaunch": lambda: seconds([MSLAUNCH, "train", "-n", "2", "reduce.py"], folder),
                "msrun": lambda: seconds(msrun("reduce.py"), folder),
            }
        )
    yield _ratio("init + AllReduce, 2 ranks", took, "msrun", 0.60)


def help_text() -> Iterator[Row]:
    here = Path()
    took = medians(
        {
            "mslaunch": lambda: seconds([MSLAUNCH, "--help"], here),
            "msrun": lambda: seconds([MSRUN, "--help"], here),
        }
    )
    yield _ratio("--help", took, "msrun", 0.12)


def memory() -> Iterator[Row]:
    """Resident memory of launcher, agent and guard while ranks run, shared pages counted in each."""
    with workplace(wait="import time\ntime.sleep(60)\n") as folder:
        launcher = subprocess.Popen([MSLAUNCH, "train", "-n", "2", "wait.py"], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            time.sleep(2)
            ours = [psutil.Process(launcher.pid)]
            ours += [
                child
                for child in ours[0].children(recursive=True)
                if "mslaunch.agent.main" in " ".join(child.cmdline())
            ]
            megabytes = sum(process.memory_info().rss for process in ours) / 1e6
        finally:
            launcher.terminate()
            launcher.wait()
    yield Row("launcher + agent memory", f"{megabytes:.0f} MB", f"{len(ours)} processes", megabytes, 100, "MB")


def _ratio(what: str, took: dict[str, float], peer: str, limit: float) -> Row:
    ours, theirs = took["mslaunch"], took[peer]
    return Row(what, f"{ours:.2f} s", f"{peer} {theirs:.2f} s", ours / theirs, limit)
