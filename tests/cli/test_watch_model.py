"""What the view of a run shows and what keys do, without a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from mslaunch.cli.watch.frame import draw, draw_curve
from mslaunch.cli.watch.model import (
    Choices,
    Happened,
    Overview,
    Room,
    TimedNote,
    chosen_rank,
    count_states,
    find_curve,
    find_progress,
    make_progress,
    make_rows,
    press,
    visible_rows,
)
from mslaunch.cli.watch.terminal import read_keys
from mslaunch.metrics.rows import Row, Source
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.record import AttemptSummary, RunRecord
from mslaunch.text import display_width
from tests.beds.watch_bed import new_record

NOW = 1_763_390_000.0
CLOCK = datetime.fromtimestamp(NOW).astimezone()


def table_of(ranks: int, steps: int = 40, **of_ranks: Mapping[str, float]) -> SeriesTable:
    """So many steps of every rank, the last one now; `r3={...}` changes what rank 3 tells."""
    table = SeriesTable()
    for step in range(steps):
        for rank in range(ranks):
            values = {"step": step, "loss": 1.0, "step_time": 0.25, "cpu_wait": 0.01, **of_ranks.get(f"r{rank}", {})}
            table.add([Row(NOW - steps + step + 1, Source(0, rank), values)])
    return table


def overview_of(record: RunRecord, table: SeriesTable | None = None, **more: Any) -> Overview:
    table = table or table_of(record.world_size)
    happened = more.pop("happened", Happened())
    rows = make_rows(record, table, happened, NOW)
    progress, curve = find_progress(record, table, NOW), find_curve(record, table, None)
    return Overview("big", record, rows, count_states(rows), progress, curve, happened, **more)


def states(overview: Overview) -> list[tuple[int, str]]:
    return [(row.rank, row.state) for row in overview.rows]


def lines_of(overview: Overview, now: Choices | None = None, columns: int = 80, lines: int = 24) -> list[str]:
    return draw(overview, now or Choices(), columns, lines, CLOCK)[0]


def pressed(keys: str | list[str], overview: Overview, now: Choices | None = None, asks: bool = False) -> Choices:
    now = now or Choices()
    for key in keys:
        now, _ = press(now, key, overview, Room(5, 20), asks)
    return now


def test_ranks_in_trouble_come_first() -> None:
    """Failed, suspended, silent, without a loss and slow ones, in this order; then the others by number."""
    record = new_record(8)
    failed = replace(record.ranks[6], ended=record.started, exit_code=1)
    record = replace(record, ranks=(*record.ranks[:6], failed, record.ranks[7]))
    table = table_of(7, r1={"step_time": 0.4}, r3={"loss": math.nan}, r4={"stopped": 1})
    table.add([Row(NOW - 31, Source(0, 7), {"step": 3})])
    expected = [(6, "failed"), (4, "suspended"), (7, "silent"), (3, "nan"), (1, "slow")]
    assert states(overview_of(record, table)) == [*expected, (0, "running"), (2, "running"), (5, "running")]


def test_a_rank_that_waits_for_its_core_is_slow() -> None:
    """A collective makes the step times of all ranks equal; who is ready and has no core is seen all the same."""
    assert states(overview_of(new_record(4), table_of(4, r2={"cpu_wait": 0.5})))[0] == (2, "slow")


def test_on_a_busy_machine_no_rank_is_slow() -> None:
    """What all ranks suffer alike is no trouble of one of them."""
    wait = {"cpu_wait": 0.6}
    table = table_of(3, r0=wait, r1=wait, r2=wait)
    assert {state for _, state in states(overview_of(new_record(3), table))} == {"running"}


def test_a_filter_that_no_rank_fits_is_said() -> None:
    """An empty table would look like a run without ranks."""
    drawn = lines_of(overview_of(new_record(2), table_of(2)), Choices(filter="nosuch"), 100, 30)
    assert " No rank fits the filter 'nosuch'." in drawn
    assert not any("STEP TIME" in line for line in drawn)


def test_slow_steps_are_no_silence() -> None:
    """A job whose steps take a minute prints one a minute."""
    table = SeriesTable()
    for step in range(3):
        table.add([Row(NOW - 180 + 60 * step, Source(0, 0), {"step": step})])
    assert states(overview_of(new_record(1), table)) == [(0, "running")]


def test_numbers_of_an_earlier_attempt_are_not_shown() -> None:
    """After a restart a rank begins without step and loss."""
    attempt = AttemptSummary(0, None, 1, None, None)
    overview = overview_of(replace(new_record(2), attempts=(attempt,)))
    assert [(row.step, row.loss) for row in overview.rows] == [(None, None), (None, None)]


def test_the_step_time_is_compared_with_the_median() -> None:
    """Also where ranks print no step time: then it is the time from step to step."""
    table = SeriesTable()
    for rank, seconds in ((0, 1.0), (1, 1.0), (2, 3.0)):
        table.add(Row(NOW - 30 + step * seconds, Source(0, rank), {"step": step}) for step in range(10))
    rows = {row.rank: row for row in overview_of(new_record(3), table).rows}
    assert [(rows[rank].step_time, rows[rank].against) for rank in range(3)] == [(1, 1), (1, 1), (3, 3)]


def test_a_rank_shows_how_busy_its_device_is() -> None:
    """Devices are told by host and number."""
    table = SeriesTable()
    table.add([Row(NOW, Source(0, None, "n1", 0), {"utilisation": 97})])
    rows = {row.rank: row.device for row in overview_of(new_record(2, hosts=2), table).rows}
    assert rows == {0: None, 1: 97}


def test_progress_is_told_with_the_time_left() -> None:
    """At a step a second, the time left is the number of steps left, also where ranks print no step time."""
    table = SeriesTable()
    table.add(Row(NOW + step, Source(0, 0), {"step": step}) for step in range(11))
    found = make_progress({"step": 10, "steps": 100, "epoch": 1, "epochs": 2, "loss": 0.5}, table.of(Source(0, 0)))
    assert found is not None
    assert found.extent is not None
    assert found.extent.share == pytest.approx(0.05)
    assert found.words == ("epoch 1/2 step 10/100", "loss 0.5", "1.0 steps/s", "3 min left")


def test_a_job_that_makes_no_step_shows_no_speed() -> None:
    """The speed and the time left were those of then; a run that has ended is not said to be silent."""
    table = SeriesTable()
    table.add(Row(NOW - 57 + step, Source(0, 0), {"step": step, "steps": 100}) for step in range(11))
    running = find_progress(new_record(1), table, NOW)
    ended = find_progress(new_record(1, state="succeeded"), table, NOW)
    assert running is not None
    assert running.words == ("step 10/100", "no step for 47 s")
    assert ended is not None
    assert ended.words == ("step 10/100", "1.0 steps/s", "2 min left")


def test_the_rate_counts_from_where_steps_began_again() -> None:
    """`step` may begin again with every epoch."""
    table = SeriesTable()
    table.add(Row(NOW + at, Source(0, 0), {"step": step}) for at, step in enumerate((8, 9, 10, 1, 3, 5)))
    found = make_progress({"step": 5, "steps": 15}, table.of(Source(0, 0)))
    assert found is not None
    assert found.words == ("step 5/15", "2.0 steps/s", "5 s left")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_numbers_that_are_none_break_nothing(bad: float) -> None:
    """A file may say anything."""
    every = dict.fromkeys(("step", "steps", "epoch", "epochs", "loss", "step_time", "cpu", "cpu_wait", "memory"), bad)
    record = new_record(3)
    table = table_of(3, r0=every, r1=every)
    overview = overview_of(record, table)
    assert len(lines_of(overview, columns=120, lines=50)) == 50


def test_a_curve_goes_from_its_first_to_its_last_value() -> None:
    """A falling line begins at the top and ends at the bottom; every column has a dot."""
    drawn = draw_curve(range(100), [100 - n for n in range(100)], 10, 4)
    assert (drawn[0][0], drawn[-1][0], drawn[0][-1], drawn[-1][-1]) == ("⠙", "⠀", "⠀", "⣄")
    assert all(any(line[at] != "⠀" for line in drawn) for at in range(10))


@pytest.mark.parametrize("values", [[], [1.0], [math.nan, math.inf, 2.0]])
def test_without_two_numbers_there_is_no_curve(values: list[float]) -> None:
    """Nothing is drawn of what is no number."""
    assert draw_curve(range(len(values)), values, 10, 4) == []


def test_a_curve_of_one_value_is_a_line() -> None:
    """A loss that stays the same is drawn at the bottom."""
    assert draw_curve(range(50), [3.0] * 50, 4, 2) == ["⠀⠀⠀⠀", "⣀⣀⣀⣀"]


@pytest.mark.parametrize("ranks", [1, 8, 1024])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 60), (40, 10), (20, 5), (3, 2), (1, 1)])
def test_the_screen_is_filled_and_never_overflows(ranks: int, columns: int, lines: int) -> None:
    """As many lines as the terminal has, none wider than it, whatever is shown."""
    notes = tuple(TimedNote(NOW, f"note {number} " * 20) for number in range(9))
    log = [f"line {number} \x1b[31m中文" * 30 for number in range(100)]
    overview = overview_of(new_record(ranks, 2), happened=Happened(notes), log_rank=0, log_lines=log)
    for pane in ("", "log", "notes", "help", "verdict", "stacks"):
        drawn = lines_of(overview, Choices(pane=pane), columns, lines)
        assert len(drawn) == lines
        assert max(map(display_width, drawn)) <= columns


def test_eight_ranks_fit_into_a_small_terminal() -> None:
    """With a log of some lines below them and the notes."""
    log = [f"line {number}" for number in range(100)]
    happened = Happened((TimedNote(NOW, "rank 3 is slow"),))
    shown = "\n".join(lines_of(overview_of(new_record(8), happened=happened, log_rank=0, log_lines=log)))
    assert all(f"{rank}  running" in shown for rank in range(8))
    assert "line 99\n" in shown
    assert "rank 3 is slow" in shown


def test_the_chosen_rank_of_many_is_always_on_the_screen() -> None:
    """The table moves with it."""
    overview = overview_of(new_record(1024))
    for rank in (0, 500, 1023):
        shown = "\n".join(lines_of(overview, Choices(chosen=rank)))
        assert f"{rank:>6}  running" in shown
    assert "-1024 of 1024" in shown


def test_what_a_job_prints_never_controls_the_terminal() -> None:
    """Escape sequences of logs, notes and host names are shown as text; colours stay inside their line."""
    evil = "\x1b]0;title\x07\x1b[2J\x1b[?1049l\x9b31m\x00\r\n\u202e"
    record = new_record(2)
    record = replace(record, ranks=tuple(replace(one, host=f"n{one.rank}{evil}") for one in record.ranks))
    happened = Happened((TimedNote(NOW, evil), TimedNote(math.inf, evil)))
    overview = overview_of(record, happened=happened, log_rank=0, log_lines=[evil] * 5, queue_job=evil, verdict=())
    for pane in ("", "log", "notes", "stacks"):
        drawn = "".join(lines_of(overview, Choices(pane=pane, stacks=(evil,), filter=evil), 160, 40))
        for control in ("\x1b]", "\x1b[2J", "\x1b[?", "\x9b", "\x00", "\r", "\n", "\x07", "\u202e"):
            assert control not in drawn


def test_moving_goes_from_row_to_row_as_they_are_shown() -> None:
    """Also where a slow rank stands first."""
    overview = overview_of(new_record(4), table_of(4, r2={"step_time": 9.0}))
    assert [pressed(keys, overview).chosen for keys in (["down"], ["up"], "j", "G", "g", "kk")] == [1, 2, 1, 3, 2, 2]


def test_a_number_chooses_a_rank() -> None:
    """Digits that follow each other are one number, as long as there is such a rank."""
    overview = overview_of(new_record(130))
    assert [pressed(keys, overview).chosen for keys in ("7", "12", "129", "1299", "1j2")] == [7, 12, 129, 9, 2]


def test_a_rank_that_does_not_exist_is_told() -> None:
    """The choice stays as it was."""
    now = pressed("9", overview_of(new_record(8)), Choices(chosen=3))
    assert (now.chosen, now.message) == (3, "there is no rank 9")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("slow", [2]), ("1-2", [2, 1]), ("n1", [1, 3]), ("1-", [2, 0, 1, 3]), ("nothing", [])],
)
def test_a_filter_leaves_ranks_states_or_hosts(text: str, ranks: list[int]) -> None:
    """Half a range changes nothing yet."""
    overview = overview_of(new_record(4, hosts=2), table_of(4, r2={"step_time": 9.0}))
    now = pressed(["/", *text, "enter"], overview)
    assert [row.rank for row in visible_rows(overview, now.filter)] == ranks
    assert chosen_rank(overview, now) == (min(ranks) if ranks else None)
    assert pressed(["escape"], overview, now).filter == ""


def test_stopping_is_asked_about() -> None:
    """Only y stops."""
    overview = overview_of(new_record(2))
    asked, action = press(Choices(), "x", overview, Room(), False)
    assert (asked.question, action) == ("stop", None)
    assert [press(asked, key, overview, Room(), False)[1] for key in ("y", "n", "x", "escape")] == [
        "stop",
        None,
        None,
        None,
    ]


def test_quitting_the_view_of_a_launch_is_asked_about() -> None:
    """Whether to stop the job or to go on in plain lines; the view of another's run just ends."""
    overview = overview_of(new_record(2))
    assert press(Choices(), "q", overview, Room(), False)[1] == "quit"
    asked, action = press(Choices(), "q", overview, Room(), True)
    assert action is None
    assert [press(asked, key, overview, Room(), True)[1] for key in ("s", "f", "q")] == ["stop", "quit", None]


def test_a_log_is_scrolled_from_its_end() -> None:
    """Up shows earlier lines, end the last ones again."""
    overview = overview_of(new_record(1), log_rank=0, log_lines=[f"line {number}" for number in range(100)])

    def last_shown(keys: list[str]) -> str:
        now, room = Choices(pane="log"), draw(overview, Choices(pane="log"), 80, 24, CLOCK)[1]
        for key in keys:
            now, _ = press(now, key, overview, room, False)
        return lines_of(overview, now)[-2]

    keys: tuple[list[str], ...] = (
        [],
        ["up"],
        ["page-up"],
        ["page-up", "page-down"],
        ["home"],
        ["home", "end"],
        ["down"],
    )
    assert [last_shown(some) for some in keys] == [f"line {n}" for n in (99, 98, 79, 99, 20, 99, 99)]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[F", ["up", "down", "page-up", "end"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[200~", []),
        ("中\x7f\r".encode(), ["中", "backspace", "enter"]),
        (b"\xff\x00\x1a", ["suspend"]),
    ],
)
def test_keys_are_known_by_what_terminals_send(data: bytes, keys: list[str]) -> None:
    """What no key of ours sends is left out."""
    assert read_keys(data) == keys
