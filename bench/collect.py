"""How fast the logs of a host without a shared folder are collected, beside `ssh cat` of as many bytes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.measure import MSLAUNCH, Row, medians, workplace
from tests.beds.ssh_bed import Bed, apart, bed

MEGABYTES = 200
WRITES = f"""import base64, os
line = base64.b64encode(os.urandom(3 << 18))[:-1] + b"\\n"
with open("log.txt", "ab") as log:
    for _ in range({MEGABYTES}):
        log.write(line)
"""


def logs() -> Iterator[Row]:
    """From the end of the rank to the end of the command: its log is here, and what was brought there is removed."""
    with workplace(train=WRITES) as folder:
        (folder / "ssh").mkdir()
        runs = folder / "runs"
        runs.mkdir()
        with bed(folder / "ssh", 1) as made, apart(made, "own", runs, "1g"):
            commands = {"mslaunch": partial(_collect, made, folder), "ssh": partial(_cat, made, folder)}
            times = medians(commands, rounds=3)
    rate, peer = MEGABYTES / times["mslaunch"], MEGABYTES / times["ssh"]
    what = f"{MEGABYTES} MB of logs collected over SSH"
    yield Row(what, f"{rate:.0f} MB/s", f"ssh cat {peer:.0f} MB/s", times["mslaunch"] / times["ssh"], 4.0)
    yield Row("the same, 100 MB of it", f"{100 / rate:.2f} s", "", 100 / rate, 1.0, "s")


def _environment(made: Bed) -> dict[str, str]:
    return {**os.environ, "HOME": str(made.home)}


def _collect(made: Bed, folder: Path) -> float:
    """Launch a rank that writes a long log; return how long its collection took."""
    command = [MSLAUNCH, "train", "--hosts", "own:1", "--tail", "none", "--runs-dir", str(folder / "runs")]
    subprocess.run(command, cwd=folder, env=_environment(made), capture_output=True, check=True)
    ended = time.time()
    run = (folder / "runs" / "latest").resolve()
    size = (run / "rank_0" / "log.txt").stat().st_size
    if size != MEGABYTES << 20:
        raise RuntimeError(f"{size} bytes of {MEGABYTES} MB were collected")
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    exited: float = next(event["time"] for event in events if event["ev"] == "exited")
    subprocess.run(["rm", "-rf", str(run)], check=True)
    return ended - exited


def _cat(made: Bed, folder: Path) -> float:
    """Send as many bytes through ssh into a file."""
    ssh = ["ssh", "-p", str(made.port), "-i", f"{made.folder}/id", "-o", "StrictHostKeyChecking=no"]
    ssh += ["-o", f"UserKnownHostsFile={made.home}/.ssh/known_hosts", "127.0.1.1", "true"]
    subprocess.run(ssh, check=True, capture_output=True)  # the key exchange is not what is measured
    source, target = folder / "bytes", folder / "copy"
    if not source.exists():
        source.write_bytes(os.urandom(1 << 20) * MEGABYTES)
    start = time.perf_counter()
    with target.open("wb") as file:
        subprocess.run([*ssh[:-1], f"cat {source}"], check=True, stdout=file)
    return time.perf_counter() - start
