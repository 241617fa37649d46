"""How a run stands in list and page: silence, sweep values and arguments, and a queue that is slow to answer."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mslaunch.metrics.rows import Row, Source
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.run import Run
from mslaunch.ui.bounds import REPORT
from mslaunch.ui.document import make_document
from mslaunch.ui.library import Library
from tests.beds.past_runs import make_run, make_running, make_sweep, tell_steps
from tests.conftest import Bench, wait_for


def silence(folder: RunFolder) -> tuple[Any, Any]:
    """What the list and the page say of it."""
    (listed,) = Library(str(folder.path.parent)).summaries()
    run = Run(folder)
    return listed["silent"], make_document(run, run.metrics().table, time.time(), REPORT, ())["silent"]


@pytest.mark.parametrize(("ago", "pace", "is_silent"), [(47, 0.5, True), (10, 0.5, False), (47, 6.0, False)])
def test_a_run_whose_ranks_tell_no_step_is_silent(tmp_path: Path, ago: float, pace: float, is_silent: bool) -> None:
    """After 30 s, or ten steps of its own where these take longer."""
    folder = make_running(tmp_path)
    tell_steps(folder, ago, pace)
    for found in silence(folder):
        assert found == pytest.approx(ago, abs=20) if is_silent else found is None


@pytest.mark.parametrize(
    ("numbers", "progress"),
    [
        ({"step": 30, "steps": 40, "epoch": 2}, {"share": 0.75, "of": "of epoch 2", "left": 5.0}),
        ({"step": 30, "steps": 40, "epoch": 2, "epochs": 2}, {"share": 0.875, "of": "", "left": 5.0}),
        ({"step": 30}, None),
    ],
)
def test_the_page_shows_the_progress_of_the_job_or_names_the_epoch(
    tmp_path: Path, numbers: dict[str, float], progress: dict[str, Any] | None
) -> None:
    """As `watch` does."""
    run = Run(make_running(tmp_path))
    table = SeriesTable()
    table.add([Row(time.time(), Source(0, 0), {**numbers, "step_time": 0.5})])
    assert make_document(run, table, time.time(), REPORT, ())["progress"] == progress


def test_resources_do_not_hide_that_a_run_is_silent(tmp_path: Path) -> None:
    """They are told on while a job hangs, and fill the end of the file."""
    folder = make_running(tmp_path)
    tell_steps(folder, ago=5000)
    writer = MetricsWriter(folder.metrics)
    begin = time.time() - 5000
    writer.write(
        [Row(begin + at, Source(0, at % 2), {"cpu": 0.5, "memory": 10**9, "threads": 3}) for at in range(4000)]
    )
    writer.close()
    assert all(seconds > 4000 for seconds in silence(folder))
    assert Library(str(tmp_path)).summaries()[0]["values"] == {"step": 10, "loss": 0.1}


def test_one_rank_that_tells_steps_is_enough(tmp_path: Path) -> None:
    """The other one is marked in the table of ranks."""
    folder = make_running(tmp_path)
    tell_steps(folder, ago=100)
    writer = MetricsWriter(folder.metrics)
    writer.write([Row(time.time(), Source(0, 1), {"step": 11, "loss": 0.1})])
    writer.close()
    assert silence(folder) == (None, None)
    run = Run(folder)
    rows = make_document(run, run.metrics().table, time.time(), REPORT, ())["ranks"]
    assert rows[0]["silent"] >= 100
    assert rows[1]["silent"] is None


def test_a_run_that_has_ended_is_not_silent(tmp_path: Path) -> None:
    """Whenever it told its last step."""
    folder = make_run(tmp_path, "one")
    tell_steps(folder, ago=5000)
    assert silence(folder) == (None, None)


def test_a_rank_has_the_mean_of_its_step_times(tmp_path: Path) -> None:
    """From when its steps came, where it prints none."""
    run = Run(make_run(tmp_path, "one"))
    table = SeriesTable()
    table.add(Row(float(step), Source(0, 0), {"step": step * 4}) for step in range(5))
    rows = make_document(run, table, time.time(), REPORT, ())["ranks"]
    assert [row["pace"] for row in rows] == [0.25, None]


def test_runs_of_a_sweep_are_listed_with_their_values(tmp_path: Path) -> None:
    """And so are the arguments of a script; a sweep.json that cannot be read is no error."""
    make_sweep(tmp_path, "sweep", "1", "2")
    assert [one["sweep"] for one in Library(str(tmp_path)).summaries()] == ["", ""]
    runs = [{"run_id": str(at), "assignments": {"lr": f"0.{at}", "seed": "3", "api_token": "hush"}} for at in (1, 2)]
    nothing: dict[str, Any] = {"launcher": None, "config": None, "config_text": None, "flags": {}, "script_args": []}
    raw = {"sweep_id": "sweep", "started": "", "varied": ["lr", "api_token"], "runs": runs, **nothing}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(raw))
    plan = {"program": {"args": ["--epochs", "3", "a b", "--token=hush"]}}
    (tmp_path / "sweep" / "2" / "plan.json").write_text(json.dumps(plan))
    listed = {one["name"]: one for one in Library(str(tmp_path)).summaries()}
    assert listed["sweep/1"]["sweep"] == "lr=0.1 api_token=***"
    assert listed["sweep/2"]["arguments"] == "--epochs 3 'a b' --token=***"


def test_the_page_of_a_run_has_the_arguments_of_its_script(bench: Bench) -> None:
    """As they were typed."""
    bench.write("train.py", "print('hello')")
    bench.mslaunch("train", "train.py", "--", "--lr", "0.3")
    assert json.loads(bench.mslaunch("report", "--json").stdout)["given"] == {"sweep": "", "arguments": "--lr 0.3"}


def test_a_slow_queue_stops_no_other_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs are listed for others while somebody waits for an answer about one of them."""
    make_run(tmp_path, "ended")
    make_running(tmp_path, "waiting")
    library = Library(str(tmp_path))
    asked, answered = threading.Event(), threading.Event()

    def ask_slowly(_: Run) -> str:
        asked.set()
        assert answered.wait(60)
        return "running"

    monkeypatch.setattr(Run, "state", property(ask_slowly))
    first = threading.Thread(target=library.summaries)
    first.start()
    assert asked.wait(60)
    second = threading.Thread(target=lambda: (library.summaries(), library.tag(["ended"])))
    second.start()
    try:
        wait_for(lambda: not second.is_alive(), "another request to be answered")
    finally:
        answered.set()
        first.join()
        second.join()
