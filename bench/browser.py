"""How large the report of a long job is and how quickly it opens; how quick the page's server is with much to show."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import MSLAUNCH, Row, medians
from mslaunch.metrics.rows import Row as MetricsRow
from mslaunch.metrics.rows import Source
from mslaunch.run.find import find_run
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.run import Run
from mslaunch.ui import log_text
from mslaunch.ui.library import Library
from mslaunch.ui.page import make_report

STEPS = 1_000_000
RANKS = 8
DAY = 86_400.0
RUNS = 3000
LOG = 2 << 30


@contextmanager
def finished_run() -> Iterator[Run]:
    """A real run of eight ranks that print a little."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text("print('\\n'.join(f'step {i}: loss=0.5' for i in range(2000)))")
        command = [MSLAUNCH, "train", "--workers", str(RANKS), "--tail", "none", str(script)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        yield find_run(None, Path(folder) / "mslaunch-runs")


def tell_a_day(run: Run, steps: int = STEPS) -> int:
    """Write what eight ranks tell in a day, a row for every step; return how long the file is then."""
    writer = MetricsWriter(run.folder.metrics)
    start, chance = run.folder.plan.stat().st_mtime, random.Random(1)
    for step in range(steps):
        time_then = start + step * DAY / steps
        loss = 3 * math.exp(-3 * step / steps) + chance.random() / 10
        rate, took = 1e-4 * (1 - step / steps), 0.08 + chance.random() / 100
        values = {"step": step, "loss": loss, "lr": rate, "step_time": took}
        rows = [MetricsRow(time_then, Source(0, rank), values) for rank in range(RANKS)]
        if step % 60 == 0:
            usage = {"cpu": 0.9, "memory": 3e9 + step, "threads": 40, "read_rate": 1e6 * chance.random()}
            host = {"load": 8.0 + chance.random(), "memory_used": 6e10}
            device = {"utilisation": 95.0, "temperature": 60.0, "power": 300.0, "memory_used": 6e10}
            rows += [MetricsRow(time_then, Source(0, rank), usage) for rank in range(RANKS)]
            rows.append(MetricsRow(time_then, Source(0, None, "n0"), host))
            rows += [MetricsRow(time_then, Source(0, None, "n0", number), device) for number in range(RANKS)]
        writer.write(rows)
    writer.close()
    return run.folder.metrics.stat().st_size


def report_of_a_day(steps: int = STEPS) -> Iterator[Row]:
    """A million steps of eight ranks: the numbers, their report, and how long a browser takes to show it."""
    with finished_run() as run:
        longest = tell_a_day(run, steps)
        yield Row(
            "numbers of a day, 8 ranks, a million steps", f"{longest / 1e6:.1f} MB", "", longest / 1e6, 20.0, "MB"
        )
        path = run.path / "report.html"
        took = medians({"report": lambda: _write(run, path)})["report"]
        size = path.stat().st_size / 1e6
        yield Row("its report", f"{size:.2f} MB", f"made in {took:.1f} s", size, 3.0, "MB")
        opened = _open_in_browser(path)
        if opened is not None:
            yield Row("its report opened in Chromium", f"{opened:.2f} s", "", opened, 2.0, "s")


def _write(run: Run, path: Path) -> float:
    start = time.perf_counter()
    path.write_text(make_report(run))
    return time.perf_counter() - start


def _open_in_browser(path: Path) -> float | None:
    """Return how long it takes until all curves are drawn, in a browser that runs already."""
    program = shutil.which("chromium")
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    took = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(5):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(path.as_uri())
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            took.append(time.perf_counter() - start)
            page.close()
        browser.close()
    return sorted(took)[2]


def much_to_show() -> Iterator[Row]:
    """3,000 runs listed, and a log of 2 GB read and searched."""
    with finished_run() as run:
        for number in range(RUNS):
            _copy(run, run.path.with_name(f"copy-{number:04}"))
        library = Library(str(run.path.parent))
        first = _seconds(library.summaries)
        again = medians({"list": lambda: _seconds(library.summaries)})["list"]
        yield Row(f"{RUNS:,} runs listed, first time", f"{first:.2f} s", "", first, 3.0, "s")
        yield Row(f"{RUNS:,} runs listed, again", f"{again:.2f} s", "", again, 0.5, "s")
        log = run.folder.log(0)
        line = b"step 12345: loss=0.5 and some more words that a script may print in a line of its log\n"
        with log.open("wb") as file:
            for _ in range(LOG // (len(line) * 10_000)):
                file.write(line * 10_000)
            file.write(b"the needle\n")
        took = medians({"end": lambda: _seconds(lambda: log_text.window(run.path, log, None))})["end"]
        yield Row("end of a log of 2 GB", f"{took * 1000:.1f} ms", "", took * 1000, 50.0, "ms")
        took = _seconds(lambda: log_text.search(run.path, log, "needle"))
        yield Row("one piece (32 MB) of a search in it", f"{took:.2f} s", "", took, 1.0, "s")
        took = _seconds(lambda: _search_all(run, log))
        yield Row("all of a search in it", f"{took:.1f} s", "", took, 30.0, "s")


def _copy(run: Run, target: Path) -> None:
    target.mkdir()
    raw = json.loads(run.folder.record.read_text())
    (target / "run.json").write_text(json.dumps({**raw, "run_id": target.name}))
    shutil.copy(run.folder.plan, target)


def _search_all(run: Run, log: Path) -> None:
    at: int | None = 0
    while at is not None:
        hits = log_text.search(run.path, log, "needle", at)
        at = hits.then
    assert hits.found


def _seconds(call: object) -> float:
    start = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - start
