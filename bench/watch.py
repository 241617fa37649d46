"""What it costs to look at a very large job with `mslaunch watch`."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from bench.measure import MSLAUNCH, Row
from bench.scale import large_plan
from mslaunch.metrics import rows
from mslaunch.metrics.order import LOG_ROWS, RESOURCE_ROWS
from mslaunch.run import record
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder

HOSTS, EACH = 128, 8
RANKS = HOSTS * EACH
EARLIER = 50  # steps that are in the file when the view starts
SECONDS = 20.0
SIZE = struct.pack("HHHH", 50, 160, 0, 0)


def watch_many() -> Iterator[Row]:
    """A view of 1,024 ranks, whose numbers come as often as agents send them."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "runs" / "bench")
        folder.path.mkdir(parents=True)
        _make_record(folder)
        writer, over = MetricsWriter(folder.metrics), threading.Event()
        for step in range(EARLIER):
            when = time.time() + (step - EARLIER) * RANKS / LOG_ROWS
            writer.write(_step(rank, step, when) for rank in range(RANKS))
            writer.write(_resources(rank, when) for rank in range(RANKS))
        writing = threading.Thread(target=_write, args=(writer, over))
        writing.start()
        try:
            first, share = _measure(folder)
        finally:
            over.set()
            writing.join()
    ranks = f"{RANKS:,} ranks"
    yield Row(f"watch of {ranks}, CPU", f"{share:.1f} %", "of one core", share, 10, "%")
    yield Row(f"watch of {ranks}, first screen", f"{first:.2f} s", "", first, 1.0, "s")


def _make_record(folder: RunFolder) -> None:
    queued = record.queued(large_plan(folder.path, HOSTS, EACH), time.time(), in_process=True)
    ranks = tuple(replace(rank, pid=1, started=queued.started) for rank in queued.ranks)
    record.save(folder, replace(queued, state="running", ranks=ranks))


def _write(writer: MetricsWriter, over: threading.Event) -> None:
    """Write as a launcher does, ten times a second."""
    began = time.time()
    steps = resources = 0
    while not over.wait(0.1):
        now = time.time()
        step_rows, resource_rows = int((now - began) * LOG_ROWS), int((now - began) * RESOURCE_ROWS)
        writer.write(_step(at % RANKS, EARLIER + at // RANKS, now) for at in range(steps, step_rows))
        writer.write(_resources(at % RANKS, now) for at in range(resources, resource_rows))
        steps, resources = step_rows, resource_rows
    writer.close()


def _step(rank: int, step: int, when: float) -> rows.Row:
    values = {"step": step, "steps": 5000, "loss": 10 / (step + 1 + rank % 7), "step_time": 0.25 + rank % 11 / 100}
    return rows.Row(when, rows.Source(0, rank), values)


def _resources(rank: int, when: float) -> rows.Row:
    values = {"cpu": 1.5, "cpu_wait": rank % 11 / 100, "memory": 2_500_000_000 + rank, "threads": 40, "stopped": 0}
    return rows.Row(when, rows.Source(0, rank), values)


def _measure(folder: RunFolder) -> tuple[float, float]:
    """Return after how many seconds the first screen is there, and the share of a core that is used later on."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, SIZE)
    env = {**os.environ, "TERM": "xterm-256color"}
    began = time.perf_counter()
    process = subprocess.Popen([MSLAUNCH, "watch", str(folder.path)], env=env, stdin=its, stdout=its, stderr=its)
    os.close(its)
    _wait_for(ours, b"running")
    first = time.perf_counter() - began
    _wait_for(ours, b"steps/s")  # what was there before is read
    threading.Thread(target=_drain, args=(ours,), daemon=True).start()
    before = _cpu(process.pid)
    time.sleep(SECONDS)
    share = 100 * (_cpu(process.pid) - before) / SECONDS
    os.write(ours, b"q")
    process.wait()
    return first, share


def _wait_for(terminal: int, text: bytes) -> None:
    shown = b""
    while text not in shown:
        shown += os.read(terminal, 1 << 16)


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:  # the view has ended
        pass


def _cpu(pid: int) -> float:
    """CPU seconds of the command and of the process that draws for it."""
    command = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (command, *command.children()))
