"""Tables in columns: fitted to a terminal's width, whole for programs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from mslaunch.cli.console.tables import Narrowing, columns
from mslaunch.diagnose.verdict import Verdict
from mslaunch.metrics.rows import Row, Source
from mslaunch.run.metrics_file import MetricsWriter, last_loss
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import AttemptSummary
from mslaunch.text import display_width, shorten
from tests.beds.terminal_bed import run_in_terminal
from tests.beds.watch_bed import MadeRun, new_record
from tests.conftest import Bench

ROWS = [
    ("NAME", "KIND", "SIZE", "PLACE", "ABOUT"),
    ("one", "same", "12345", "here", "a long text about the first of them"),
    ("two", "same", "1", "here", "short"),
]
NARROWING = Narrowing(dull={"KIND": "same"}, optional=("SIZE", "PLACE"), texts={"ABOUT": shorten})
WHY = "ValueError: batch 6 of shard /data/imagenet/train-00001-of-01024.mindrecord: expected 224x224x3, got 224x224x4"


def headings(text: str) -> list[str]:
    return text.splitlines()[0].split()


def make_runs(bench: Bench, *names: str, **more: Any) -> list[MadeRun]:
    """Runs that have ended, the last of them failed."""
    made = []
    for name in names:
        run = MadeRun(RunFolder(bench.runs / name), new_record(2, run_id=name, script="train_resnet50.py"))
        run.step(10)
        run.writer.close()
        run.end("succeeded" if name != names[-1] else "failed", **(more if name == names[-1] else {}))
        made.append(run)
    return made


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (200, ["NAME", "SIZE", "PLACE", "ABOUT"]),
        (30, ["NAME", "SIZE", "PLACE", "ABOUT"]),
        (28, ["NAME", "SIZE", "ABOUT"]),
        (20, ["NAME", "ABOUT"]),
    ],
)
def test_a_table_leaves_out_what_a_terminal_has_no_room_for(width: int, expected: list[str]) -> None:
    """First what is the same in all rows; a column that nobody needs to see is never there."""
    shown = columns(ROWS, NARROWING, width)
    assert headings(shown) == expected
    assert max(map(display_width, shown.splitlines())) <= width


def test_the_longest_text_is_shortened() -> None:
    """Its end is marked, and the others stay whole."""
    assert columns(ROWS, NARROWING, 45).splitlines()[1] == "one   12345  here   a long text about the fi…"


def test_a_column_that_fits_after_all_is_shown() -> None:
    """A wide column that goes makes room for a narrow one that went before it."""
    rows = [("NAME", "A", "WIDE"), ("x" * 10, "1", "y" * 30), ("z", "1", "w")]
    assert headings(columns(rows, Narrowing(optional=("WIDE", "A")), 20)) == ["NAME", "A"]


def test_wide_characters_keep_columns_aligned() -> None:
    """They take two columns of the terminal."""
    assert columns([("A", "B"), ("中文", "x"), ("abc", "y")]) == "A     B\n中文  x\nabc   y\n"


def test_ps_fits_into_80_columns_and_says_why(bench: Bench) -> None:
    """Names stay whole; the last loss and the cause are there, the method that all have is not."""
    names = ("20261118-005219-ce84", "20261118-005234-66bb")
    make_runs(bench, *names, verdict=Verdict(rank=1, cause="exception", summary=WHY))
    lines = run_in_terminal(bench, "ps", columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == list(names)
    assert {"LOSS", "WHY", "TIME"} < set(lines[0].split())
    assert "METHOD" not in lines[0]
    assert lines[2].endswith("0.90909  ValueError")


def test_ps_for_programs_is_whole(bench: Bench) -> None:
    """Whatever the width of the terminal is."""
    make_runs(bench, "a", "b", verdict=Verdict(cause="host lost"))
    lines = bench.mslaunch("ps", COLUMNS="40").stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "CODE", "RANKS", "METHOD", "STARTED", "TIME", "SCRIPT", "LOSS", "WHY"]
    assert lines[2].endswith("train_resnet50.py  0.90909  host lost")


def test_status_fits_into_80_columns(bench: Bench) -> None:
    """One line a rank, with step, loss and learning rate; one line an attempt."""
    earlier = AttemptSummary(0, None, 1, Verdict(rank=0, summary=WHY), None)
    (run,) = make_runs(bench, "20261118-005219-ce84", verdict=Verdict(rank=1, summary=WHY), attempts=(earlier,))
    values = {"step": 1_250_001, "steps": 40_000_000, "epoch": 1, "epochs": 2, "loss": 0.5, "lr": 0.00123}
    values |= {"step_time": 0.9997, "cpu": 1.5, "memory": 2_500_000_000}
    run.writer.write([Row(1.0, Source(1, rank), values) for rank in (0, 1)])
    shown = run_in_terminal(bench, "status", columns=80)
    table = shown[: shown.index("── why run")].split("\n\n")
    assert max(map(len, "\n".join(table[1:]).splitlines())) <= 80
    assert table[2].splitlines()[1].split()[-6:] == ["1/2", "1250001/40000000", "0.5", "0.00123", "1", "s"]
    assert table[1].splitlines()[1].startswith("1   ")
    assert "rank 0: ValueError: batch 6" in table[1]


def test_the_last_attempt_has_its_time_and_reason(bench: Bench) -> None:
    """Attempts are counted from 1, as everywhere."""
    earlier = AttemptSummary(0, "2026-01-31T12:00:00+00:00", 1, Verdict(rank=0, summary="first"), None)
    make_runs(bench, "a", attempts=(earlier,), verdict=Verdict(rank=1, summary="second"))
    rows = bench.mslaunch("status").stdout.split("\n\n")[1].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert len(rows[1].split()) == 7
    assert rows[1].endswith("1     rank 1: second")


def test_compare_puts_runs_below_each_other_where_there_is_no_room(bench: Bench) -> None:
    """No line is wrapped, and names of runs stay whole."""
    names = [f"20261118-005219-ce8{number}" for number in range(4)]
    bench.write("train.py", "import os, sys\nif len(sys.argv) > 2: raise ValueError('a long text ' * 9)\n")
    for number, name in enumerate(names):
        bench.mslaunch("train", "-n", "1", "--run-id", name, "train.py", *["word"] * number)
    shown = run_in_terminal(bench, "compare", *names, columns=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert all(name in shown for name in names)
    whole = bench.mslaunch("compare", *names).stdout
    assert any(all(name in line for name in names) for line in whole.splitlines())


def test_status_of_one_rank_says_so(bench: Bench) -> None:
    """In the singular."""
    MadeRun(RunFolder(bench.runs / "a"), new_record(1, run_id="a")).end("succeeded")
    assert "\n1 rank, dynamic" in bench.mslaunch("status").stdout


def test_the_last_loss_is_that_of_rank_0(tmp_path: Path) -> None:
    """From the end of the file, whatever its other lines are."""
    path = tmp_path / "metrics.jsonl"
    assert last_loss(path) is None
    writer = MetricsWriter(path)
    writer.write([Row(1.0, Source(0, 0), {"loss": 9.0}), Row(2.0, Source(1, 0), {"loss": math.inf})])
    writer.write([Row(2.0, Source(1, 1), {"loss": 2.0}), Row(9.0, Source(1, 0), {"cpu": 1.0})])
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"loss":1,"rank":0,\n\xff"loss":\n')
    assert last_loss(path) == math.inf


def test_where_rank_0_tells_none_the_last_loss_of_another_is_shown(tmp_path: Path) -> None:
    """In a pipeline, the last stage has the loss."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write([Row(1.0, Source(0, 0), {"step": 1}), Row(1.0, Source(0, 7), {"loss": 3.0})])
    writer.close()
    assert last_loss(path) == 3.0


def test_a_loss_is_not_read_from_a_pipe(tmp_path: Path) -> None:
    """A list of runs never waits for a file of one of them."""
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)
    assert last_loss(path) is None
