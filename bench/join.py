"""How long a job takes whose nodes join, beside one over SSH: the whole command of the launcher, hosts on loopback."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.hosts import _bed, _ours
from bench.measure import MSLAUNCH, Row, medians, seconds, workplace
from tests.beds.ssh_bed import free_port
from tests.conftest import wait_for

NODES = 32
LIMIT = 0.5


def many_nodes() -> Iterator[Row]:
    """Nodes with one rank each that does nothing; all of them wait for the launcher when it is started."""
    with workplace(train="") as folder, _bed(folder, NODES) as made:
        master = f"127.0.0.1:{free_port()}"
        command = [MSLAUNCH, "train", "--nnodes", str(NODES), "--master", master, "--launcher-only", "--tail", "none"]
        with _waiting_nodes(folder, master) as nodes:
            times = medians(
                {
                    "ssh": partial(seconds, _ours(NODES), folder, {"HOME": str(made.home)}),
                    "join": partial(_when_all_wait, nodes, command, folder),
                },
                rounds=3,
            )
    yield Row(
        f"no-op job, {NODES} nodes that join",
        f"{times['join']:.2f} s",
        f"SSH {times['ssh']:.2f} s",
        times["join"] / times["ssh"],
        LIMIT,
    )


def _when_all_wait(nodes: list[Path], command: list[str], folder: Path) -> float:
    """Time the launcher once all nodes wait for it again: how long a node takes to start is not its time."""
    ended = (folder / "mslaunch-runs").exists() and nodes[0].read_text().count("succeeded")
    wait_for(lambda: all(log.read_text().count("waiting for") > ended for log in nodes), "all nodes", 120)
    time.sleep(1.0)
    return seconds(command, folder)


@contextmanager
def _waiting_nodes(folder: Path, master: str) -> Iterator[list[Path]]:
    """Nodes that stay: they wait for the launcher, and join the next one when a run has ended."""
    with ExitStack() as started:
        logs = [folder / f"node-{number}.log" for number in range(NODES)]
        for log in logs:
            with log.open("w") as file:
                agent = [MSLAUNCH, "agent", "--join", master, "--stay"]
                process = subprocess.Popen(agent, cwd=folder, stdout=file, stderr=file)
            started.callback(process.wait)
            started.callback(process.terminate)
        yield logs
