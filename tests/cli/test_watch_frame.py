"""What the view of a run shows in terminals that are too narrow, and of runs that are over. Without a terminal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mslaunch.cli.watch.frame import choose_columns, draw_curve, heading, name_variants, row_text
from mslaunch.cli.watch.model import Choices, Happened, RankRow, Room, TimedNote, press
from mslaunch.documents.schema import RunStatus
from mslaunch.metrics.rows import Row, Source
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.record import AttemptSummary
from mslaunch.text import display_width
from tests.beds.watch_bed import new_record
from tests.cli.test_watch_model import NOW, lines_of, overview_of

LONG = "ValueError: batch 6 of shard /data/imagenet/train-00001-of-01024.mindrecord: expected 224x224x3, got 224x224x4"
HOSTS = [f"ascend-910b-pod07-rack12-node000{number}" for number in (1, 2, 3)]


def steps(**values: float) -> SeriesTable:
    """Ten steps of rank 0, the last one with these values."""
    table = SeriesTable()
    table.add(Row(NOW - 10 + step, Source(0, 0), {"step": step + 1, "loss": 1 / (step + 1)}) for step in range(9))
    table.add([Row(NOW, Source(0, 0), values)])
    return table


def shown(table: SeriesTable | None = None, columns: int = 80, pane: str = "", **more: Any) -> str:
    record = new_record(1, **more.pop("record", {}))
    return "\n".join(lines_of(overview_of(record, table or steps(), **more), Choices(pane=pane), columns, 24))


def test_the_second_attempt_is_called_so() -> None:
    """Attempts are counted from 1, as the launcher's notes count them."""
    earlier = AttemptSummary(0, None, 1, None, None)
    assert "| attempt 2 |" in shown(record={"attempts": (earlier,)})


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_progress_is_never_cut(columns: int) -> None:
    """The percentage comes first, and what is not done of the bar is always to be seen."""
    table = steps(step=16, steps=20, epoch=4, epochs=5, loss=1.38567, step_time=0.3)
    line = shown(table, columns).splitlines()[1]
    assert line.startswith(" 76.0 %  epoch 4/5 step 16/20")
    assert display_width(line) <= columns
    assert ("█" in line) == ("░" in line)


@pytest.mark.parametrize("columns", range(20, 130, 7))
def test_a_bar_of_any_length_shows_the_share(columns: int) -> None:
    """It takes the room that is left, and only a job that is done has a full one."""
    for step in (10, 19, 20):
        line = shown(steps(step=step, steps=20, loss=0.5, step_time=0.1), columns).splitlines()[1]
        full, empty = line.count("█"), line.count("░")
        assert full == int((full + empty) * step / 20)
        assert display_width(line) <= columns


def test_steps_have_all_their_digits() -> None:
    """In the progress and in the table."""
    text = shown(steps(step=1_250_001.0, steps=40_000_000.0))
    assert "step 1250001/40000000" in text
    assert " 1250001 " in text


@pytest.mark.parametrize("pane", ["verdict", "notes", "log", "stacks"])
def test_a_long_line_can_be_read_to_its_end(pane: str) -> None:
    """On the whole screen, lines are wrapped."""
    happened = Happened((TimedNote(NOW, LONG),))
    now = Choices(pane=pane, stacks=(LONG,))
    overview = overview_of(new_record(1), verdict=[LONG], happened=happened, log_rank=0, log_lines=[LONG])
    drawn = lines_of(overview, now)
    assert any(line.replace("\x1b[0m", "").endswith("got 224x224x4") for line in drawn)


def test_the_verdict_below_the_ranks_is_wrapped() -> None:
    """The reason is often at the end of a long line."""
    assert "got 224x224x4" in shown(verdict=[LONG])


def test_a_line_of_a_log_that_is_cut_says_so() -> None:
    """Below the ranks a line of the log has one line."""
    lines = shown(log_rank=0, log_lines=[LONG]).splitlines()
    assert any(line.startswith("ValueError: batch 6") and line.endswith("…") for line in lines)


def test_the_help_fits_into_a_small_terminal() -> None:
    """At 80 columns and 24 lines, whole."""
    text = shown(pane="help")
    assert "…" not in text
    assert "of the median rank." in text
    assert "lines 1-" not in text


def test_a_pane_says_where_in_its_text_it_is() -> None:
    """Where not all of it is on the screen."""
    lines = [f"line {number}" for number in range(100)]
    assert "log of rank 0, lines 80-100 of 100" in shown(pane="log", log_rank=0, log_lines=lines)


def test_hosts_can_be_told_apart_in_little_room() -> None:
    """Whole names where they fit; else without what all of them begin with."""
    rows = [RankRow(rank, host, "running", rank, 0.5, 0.25, 1.0, 1.0, 0.1, 1e9) for rank, host in enumerate(HOSTS)]
    for width in (79, 160):
        chosen = choose_columns(rows, width)
        names = [row_text(chosen, row).split()[1] for row in rows]
        assert names == (["…node0001", "…node0002", "…node0003"] if width == 79 else HOSTS)
        assert display_width(heading(chosen)) <= width


@pytest.mark.parametrize(
    ("hosts", "shortest"),
    [
        (["n1.cluster.example.com", "n2.cluster.example.com"], ["n1", "n2"]),
        (["10.10.10.1", "10.10.10.12"], ["…1", "…12"]),
        (["alpha", "beta"], ["alpha", "beta"]),
        (["a-very-long-name-east", "b-very-long-name-west"], ["a-ver…e-east", "b-ver…e-west"]),
        (["node", "node-1"], ["node", "node-1"]),
    ],
)
def test_short_names_of_hosts_differ(hosts: list[str], shortest: list[str]) -> None:
    """Domain and beginning go where all have the same; a name that is still long is cut in its middle."""
    assert list(list(name_variants(hosts))[-1].values()) == shortest


def test_a_run_without_metrics_has_no_empty_columns() -> None:
    """Columns with nothing to show are left out."""
    overview = overview_of(new_record(2), SeriesTable())
    line = next(line for line in lines_of(overview, columns=160) if "RANK" in line)
    assert line.replace("\x1b[1m", "").replace("\x1b[0m", "").split() == ["RANK", "STATE"]


def test_the_wait_of_a_rank_that_sleeps_is_not_shown() -> None:
    """It wants a core for moments only; one that works shows its wait."""
    table = SeriesTable()
    table.add(
        [Row(NOW, Source(0, 0), {"cpu": 0.01, "cpu_wait": 0.9}), Row(NOW, Source(0, 1), {"cpu": 0.9, "cpu_wait": 0.5})]
    )
    rows = {row.rank: row.cpu_wait for row in overview_of(new_record(2), table).rows}
    assert rows == {0: None, 1: 0.5}


def test_the_learning_rate_is_told_with_the_loss() -> None:
    """Where the job prints it."""
    assert "loss of rank 0: 0.5, lr 0.00025 " in shown(steps(loss=0.5, lr=0.00025))


@pytest.mark.parametrize("state", ["succeeded", "failed", "stopped"])
def test_a_run_that_is_over_offers_nothing_to_stop(state: RunStatus) -> None:
    """Neither the key nor the question, and no time that is left."""
    record = replace(new_record(1), state=state)
    overview = overview_of(record, steps(step=20, steps=20, step_time=0.1, epoch=1, epochs=1))
    text = "\n".join(lines_of(overview, columns=120))
    assert "x stop" not in text
    assert " left" not in text
    now, action = press(Choices(), "x", overview, Room(), False)
    assert (now.question, action, now.message) == ("", None, "the run has ended: there is nothing to stop")


def test_a_run_whose_launcher_is_lost_can_be_stopped() -> None:
    """It may have left ranks."""
    overview = overview_of(replace(new_record(1), state="lost"))
    assert press(Choices(), "x", overview, Room(), False)[0].question == "stop"


def test_values_that_are_no_numbers_keep_their_place_in_a_curve() -> None:
    """The finite part takes its share of the width, and marks stand at the foot of the rest."""
    values = [1 / (step + 1) if step < 20 else math.nan for step in range(40)]
    drawn = draw_curve(range(40), values, 40, 4)
    assert all("x" not in line[:19] for line in drawn)
    assert drawn[-1][20:].count("x") >= 18
    assert all(set(line[21:]) <= {"⠀"} for line in drawn[:-1])


def test_a_curve_is_not_drawn_across_a_gap() -> None:
    """Nobody knows what the loss was between."""
    drawn = draw_curve(range(5), [1.0, 1.0, math.nan, 1.0, 1.0], 20, 1)
    assert drawn[0].count("x") == 1
    assert "⠀" in drawn[0]


def test_the_mark_is_explained() -> None:
    """Beside the loss, and only where there is one."""
    assert "loss of rank 0: nan (x: not a number)" in shown(steps(loss=math.nan))
    assert "not a number" not in shown(steps(loss=0.1))
