"""How fast a large folder of logs is read, and with how much memory; MSLAUNCH_BENCH_GB sets its size (10)."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.measure import MSLAUNCH, Row

RANKS = 256
TEXTS = 16
WORDS = ("loss", "lr", "time", "throughput", "samples", "grad norm", "scale", "memory", "data wait", "shard", "layer")


def large_folder() -> Iterator[Row]:
    """Logs of 256 ranks, each of which waits for the next, but for one: megabytes a second of CPU time, and memory."""
    size = int(float(os.environ.get("MSLAUNCH_BENCH_GB", "10")) * 1e9)
    with tempfile.TemporaryDirectory() as place:
        total = _write(Path(place), size)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        verdict, peak = _diagnose(place)
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (verdict["rank"], len(verdict["victims"])) == (77, RANKS - 1), verdict["summary"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    rate = total / 1e6 / cpu
    what = f"diagnose {total / 1e9:.1f} GB of logs of {RANKS} ranks"
    yield Row(f"{what}, s CPU for 100 MB", f"{rate:.0f} MB/s", f"{took:.1f} s in all", 100 / rate, 1.0, "s")
    yield Row("the same, all processes, peak memory", f"{peak:.0f} MB", "", peak, 300.0, "MB")


def ordinary_lines(seed: int, size: int) -> bytes:
    """Lines as training scripts print them, hardly two of which are of one form."""
    chance = random.Random(seed)
    lines: list[str] = []
    length = 0
    while length < size:
        values = (f"{chance.random():.6f}", f"{chance.random():.3e}", hex(chance.getrandbits(40)))
        pairs = [f"{chance.choice(WORDS)}: {chance.choice(values)}" for _ in range(chance.randrange(4, 14))]
        when = f"2026-11-{chance.randrange(1, 28):02d}-08:{len(lines) // 60 % 60:02d}:{len(lines) % 60:02d}.000.000"
        head = f"[WARNING] ME({seed},python):{when} " if len(lines) % 20 == 0 else "INFO "
        lines.append(f"{head}{' '.join(pairs)}\n")
        length += len(lines[-1])
    return "".join(lines).encode()


def _write(folder: Path, size: int) -> int:
    """Write the logs; everybody waits for the next rank at the end, but for rank 77."""
    texts = [ordinary_lines(seed, 1 << 20) for seed in range(TEXTS)]
    for rank in range(RANKS):
        log = folder / f"rank_{rank}" / "log.txt"
        log.parent.mkdir()
        with log.open("wb") as file:
            for number in range(size // RANKS >> 20):
                file.write(texts[(rank + number) % TEXTS])
            if rank != 77:
                peer = (rank + 1) % RANKS
                words = f"The Notify register has not received the Notify record from remote rank: [{peer}]."
                file.write(f"[ERROR] HCCL({rank},python):2026-11-28-09:00:00.000.000 EI0002: {words}\n".encode())
    return sum(path.stat().st_size for path in folder.rglob("log.txt"))


def _diagnose(folder: str) -> tuple[dict[str, Any], float]:
    """Return the verdict, and the most memory that all its processes had at once, shared pages counted once."""
    peak = 0.0
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([MSLAUNCH, "diagnose", folder, "--json"], stdout=out)
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.1)
        out.seek(0)
        return json.load(out), peak


def _memory(pid: int) -> float:
    try:
        main = psutil.Process(pid)
        return sum(float(one.memory_full_info().pss) for one in (main, *main.children(recursive=True))) / 1e6
    except psutil.Error:
        return 0.0
