"""What metrics cost: the agent's share of a core while ranks print much, and the time of the job with and without."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.measure import MSLAUNCH, Row, seconds, workplace

RANKS = 8
LINES = 1000
"""Lines a second, of each rank."""
SECONDS = 8
ROUNDS = 3
PRINTS = f"""
import os, pathlib, sys, time

def used():
    fields = pathlib.Path(f"/proc/{{os.getppid()}}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

one_in = int(sys.argv[1])
before, began = used(), time.perf_counter()
for number in range({LINES} * {SECONDS}):
    if number % one_in:
        print(f"[INFO] reading batch {{number}} of the training data from the cache", flush=True)
    else:
        print(f"epoch: 1 step: {{number}}, loss is {{1 / (number + 1)}}", flush=True)
    ahead = began + number / {LINES} - time.perf_counter()
    if ahead > 0.005:
        time.sleep(ahead)
took = time.perf_counter() - began
if os.environ["RANK_ID"] == "0":
    pathlib.Path(sys.argv[2]).write_text(str((used() - before) / took))
"""


def many_lines() -> Iterator[Row]:
    """Every line tells a loss, or one in ten."""
    with workplace(train=PRINTS) as folder:
        (folder / "off.yaml").write_text("launch: {metrics: false, config_arg: null}\n")
        (folder / "on.yaml").write_text("launch: {config_arg: null}\n")
        for one_in in (1, 10):
            shares: dict[str, list[float]] = {"on": [], "off": []}
            times: dict[str, list[float]] = {"on": [], "off": []}
            for _ in range(ROUNDS):
                for name in ("on", "off"):
                    took, share = _run(folder, name, one_in)
                    times[name].append(took)
                    shares[name].append(share)
            on, off = (100 * statistics.median(shares[name]) for name in ("on", "off"))
            what = f"{RANKS} ranks x {LINES} lines/s, 1 in {one_in} a loss"
            yield Row(f"{what}: agent", f"{on:.1f} %", f"without {off:.1f} %", on, 5.0, "%")
            job, without = (statistics.median(times[name]) for name in ("on", "off"))
            yield Row(f"{what}: job", f"{job:.2f} s", f"without {without:.2f} s", job / without, 1.01)


def _run(folder: Path, name: str, one_in: int) -> tuple[float, float]:
    """Return how long the job took, and the agent's share of a core."""
    share = folder / "share"
    share.unlink(missing_ok=True)
    command = [MSLAUNCH, "train", "-n", str(RANKS), "--tail", "none", "-c", f"{name}.yaml", "--script", "train.py"]
    took = seconds([*command, "--", str(one_in), str(share)], folder)
    return took, float(share.read_text())
