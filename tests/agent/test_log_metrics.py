"""Metrics from the logs of real ranks: read as they grow, in blocks, and whatever is in them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mslaunch.agent.metrics.line_patterns import LinePatterns
from mslaunch.agent.metrics.log_metrics import LONGEST_LINE, LogMetrics, StepCounter, read_pieces, spread, spread_rows
from mslaunch.metrics.order import metrics_order
from mslaunch.plan.model import LinePattern
from mslaunch.shared.messages import MetricsOrder
from tests.beds.driven_agent import driven_agent

LIMIT = 1 << 20


def order(*asked: LinePattern, **changes: Any) -> MetricsOrder:
    """An order that measures often, and the logs only."""
    made: Any = metrics_order(asked, 1, "CPU")
    return {**made, "every": 0.1, "resources": 1e9, **changes}  # type: ignore[typeddict-item]


class GrowingLog:
    """A log in a test's folder and what an agent reads from it."""

    def __init__(self, path: Path, *asked: LinePattern) -> None:
        self.path = path
        self.ahead = 0.0
        patterns = LinePatterns(order(*asked)["patterns"], lambda _: None)
        self.metrics = LogMetrics(str(path), patterns, lambda: time.time() + self.ahead)

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def read(self, most: int = 20, limit: int = LIMIT, is_last: bool = False) -> list[dict[str, Any]]:
        return [values for _, values in self.metrics.read(most, limit, is_last)]

    def steps(self, most: int = 20, limit: int = LIMIT, is_last: bool = False) -> list[Any]:
        return [values["step"] for values in self.read(most, limit, is_last) if "step" in values]


@pytest.fixture
def log(tmp_path: Path) -> GrowingLog:
    return GrowingLog(tmp_path / "log.txt")


def loss_lines(first: int, last: int) -> bytes:
    return b"".join(b"step %d: loss=0.5\n" % number for number in range(first, last + 1))


def test_the_last_line_of_a_short_job_is_sent_before_its_end(tmp_path: Path) -> None:
    """Also one without a newline, by all ranks, whether they are shown or not."""
    with driven_agent(tmp_path) as agent:
        agent.run("echo step 1: loss=0.5; printf 'step 2: loss=0.25'", "echo loss: nan", metrics=order(), tail=[])
        events = agent.until("exited") + agent.until("exited")
    rows = [(row["rank"], row["values"]) for event in events if event["ev"] == "metrics" for row in event["rows"]]
    assert (0, {"step": 1, "loss": 0.5}) in rows
    assert [values for rank, values in rows if rank == 0][-1].items() >= {"step": 2, "loss": 0.25}.items()
    assert (1, {"loss": "nan"}) in rows
    for rank in (0, 1):
        told = [event["ev"] for event in events if event.get("rank") == rank or event["ev"] == "metrics"]
        assert told.index("metrics") < len(told) - 1


def test_nothing_is_sent_where_nothing_is_measured(tmp_path: Path) -> None:
    """`launch.metrics: false`."""
    with driven_agent(tmp_path) as agent:
        agent.run("echo step 1: loss=0.5", metrics=None)
        assert "metrics" not in [event["ev"] for event in agent.until("exited")]


def test_a_log_is_read_as_it_grows(log: GrowingLog) -> None:
    """A line that has not ended is read when it has."""
    assert log.read() == []
    log.write(b"step 1: loss=0.5\nstep 2: lo")
    assert log.steps() == [1]
    log.write(b"ss=0.5\n")
    assert log.steps() == [2]
    assert log.read() == []


def test_of_many_lines_the_first_the_last_and_some_between_are_read(log: GrowingLog) -> None:
    """No more than were asked for."""
    log.write(loss_lines(1, 1000))
    steps = log.steps(most=5)
    assert (steps[0], steps[-1], len(steps)) == (1, 1000, 5)


def test_a_rare_kind_of_line_is_not_lost_among_many_others(tmp_path: Path) -> None:
    """What one line in a thousand tells is read as well."""
    log = GrowingLog(tmp_path / "log.txt", LinePattern("acc", r"acc: ([\d.]+)"))
    log.write(loss_lines(1, 500) + b"acc: 0.75\n" + loss_lines(501, 1000))
    assert {"acc": 0.75} in log.read(most=4)


def test_a_loss_that_is_nan_is_read_among_many_others(log: GrowingLog) -> None:
    """Wherever it stands."""
    other = b"a limit of inf, a mean of nan\n" * 20
    log.write(other + loss_lines(1, 333) + b"step 334: loss=nan\n" + loss_lines(335, 1000))
    assert {"step": 334, "loss": "nan"}.items() <= next(v for v in log.read(most=2) if v["step"] == 334).items()


def test_of_a_log_that_grows_too_quickly_pieces_are_read(log: GrowingLog) -> None:
    """The first, the last and some between."""
    log.write(loss_lines(1, 200_000))
    steps = log.steps(most=20, limit=1 << 18)
    assert (steps[0], steps[-1]) == (1, 200_000)
    assert steps == sorted(steps)


def test_no_line_is_cut_in_two_where_pieces_are_read(log: GrowingLog) -> None:
    """Half a number is another number."""
    log.write(loss_lines(1, 200_000))
    with log.path.open("rb") as file:
        pieces = read_pieces(file.fileno(), 0, log.path.stat().st_size, 1 << 18)
    lines = pieces.splitlines()
    assert set(lines) <= set(loss_lines(1, 200_000).splitlines())
    assert (lines[0], lines[-1]) == (b"step 1: loss=0.5", b"step 200000: loss=0.5")


def test_a_log_that_was_cut_is_read_from_its_start(log: GrowingLog) -> None:
    """Some programs empty their log."""
    log.write(loss_lines(1, 3))
    assert log.steps() == [1, 2, 3]
    log.path.write_bytes(b"step 4: loss=1\n")
    assert log.steps() == [4]


def test_a_log_that_was_replaced_is_read_from_its_start(log: GrowingLog) -> None:
    """A restart, or something that rotates logs, puts another file in its place."""
    log.write(loss_lines(1, 3))
    assert log.steps() == [1, 2, 3]
    log.path.rename(log.path.with_suffix(".1"))
    log.write(loss_lines(4, 10))
    assert log.steps() == [4, 5, 6, 7, 8, 9, 10]


def test_states_of_a_progress_bar_are_lines(log: GrowingLog) -> None:
    """A carriage return ends one as a newline does."""
    bar = "Epoch 1: {0:3d}%|####| {0}/100 [00:35<00:35, 11.10it/s, loss=0.5]"
    log.write("".join(f"\r{bar.format(number)}" for number in (10, 20, 30)).encode())
    assert log.steps() == [10]
    assert log.steps(is_last=True) == [20, 30]


def bar_states(*states: str) -> bytes:
    """What tqdm writes for states such as `3 0.25`: a step of 4, and the loss where one was set."""
    drawn = []
    for state in states:
        step, _, loss = state.partition(" ")
        percent = 25 * int(step)
        drawn.append(f"\r{percent:3d}%|##  | {step}/4 [00:01<00:01,  2.00it/s{loss and f', loss={loss}'}]")
    return "".join(drawn).encode()


@pytest.mark.parametrize(
    "states",
    [
        ("0", "0 .1", "1 .1", "1 .2", "2 .2", "2 nan", "3 nan", "3 .4", "4 .4", "4 .4"),
        ("0", "1", "1 .1", "2 .1", "2 .2", "3 .2", "3 nan", "4 nan", "4 .4", "4 .4"),
        ("0", "1 .1", "2 .2", "3 nan", "4 .4"),
    ],
    ids=["set, then counted", "counted, then set", "drawn once"],
)
@pytest.mark.parametrize("at_once", [1, 3, 20])
def test_each_step_of_a_progress_bar_has_its_own_loss(log: GrowingLog, states: tuple[str, ...], at_once: int) -> None:
    """As tqdm draws it for three kinds of loops, however many states come between two looks; also in a second epoch."""
    rows = []
    for _ in range(2):
        for first in range(0, len(states), at_once):
            log.write(bar_states(*states[first : first + at_once]))
            rows += log.read()
        log.write(b"\n")
    rows += log.read(is_last=True)
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    assert losses == 2 * [(1, 0.1), (2, 0.2), (3, "nan"), (4, 0.4)]
    assert {row["step_time"] for row in rows if "loss" in row} == {0.5}


def test_a_state_of_a_progress_bar_that_stands_is_read(log: GrowingLog) -> None:
    """A step may take minutes: its loss is not left to the next one."""
    log.write(bar_states("0", "0 .1", "1 .1"))
    assert log.read() == []
    assert [(row["step"], row["loss"]) for row in log.read()] == [(1, 0.1)]
    assert log.read() == []
    log.write(bar_states("1 nan"))
    assert [*log.read(), *log.read()] == []
    assert [(row["step"], row["loss"]) for row in log.read(is_last=True)] == [(2, "nan")]


def test_a_trainer_tells_its_steps_by_its_progress_bar(log: GrowingLog) -> None:
    """Where its lines with the loss have none; bars of downloads and evaluations are none of a training."""
    log.write(b"\r 50%|##  | 1/2 [00:01<00:01,  1.00it/s]\nMap:  50%|##  | 5/10 [00:01<00:01,  1.00it/s]\n")
    assert log.read() == []
    log.write(b"{'loss': 0.5, 'epoch': 0.1}\n 10%|#   | 10/100 [00:05<00:45,  2.00it/s]\r")
    assert log.read() == [{"loss": 0.5, "epoch": 0.1}, {"step": 10, "steps": 100}]
    log.write(b" 50%|##  | 4/8 [00:05<00:45,  2.00it/s]\r 20%|##  | 20/100 [00:15<00:45,  2.00it/s]\r")
    assert log.steps() == [20]


def test_what_is_no_text_does_no_harm(log: GrowingLog) -> None:
    """NUL, invalid UTF-8 and a line without end."""
    log.write(b"\0\xff\xfe" * 1000 + b"\n" + b"loss" * (1 << 18))
    assert log.read() == []
    log.write(b"x" * (1 << 20) + b"\n\xff step 7: loss=0.5 \0\n")
    assert log.steps() == [7]
    assert len(log.metrics._partial) <= LONGEST_LINE


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_something_else_in_place_of_a_log_is_left_alone(tmp_path: Path, make: Any) -> None:
    """A job may put anything into its folder."""
    make(tmp_path / "log.txt")
    assert GrowingLog(tmp_path / "log.txt").read() == []


def test_the_rank_of_an_attempt_before_is_not_read_again(tmp_path: Path) -> None:
    """A restart puts its log aside and begins anew."""
    with driven_agent(tmp_path) as agent:
        agent.run("echo step 8: loss=0.5", metrics=order())
        agent.until("exited")
        agent.run("echo step 1: loss=0.5", metrics=order(), attempt=1)
        events = agent.until("exited")
    assert [row["values"]["step"] for event in events if event["ev"] == "metrics" for row in event["rows"]] == [1]


def counted(*rows: dict[str, Any]) -> list[Any]:
    counter = StepCounter()
    for second, row in enumerate(rows):
        counter.add_to(row, float(second), is_last=False)
    return [row.get("total_step") for row in rows]


@pytest.mark.parametrize(
    ("rows", "totals"),
    [
        ([(1, 1, None), (1, 25, None), (2, 1, None), (2, 25, None), (3, 5, None)], [None, None, 26, 50, 55]),
        ([(1, 25, None), (2, 25, None), (3, 25, None)], [None, 50, 75]),
        ([(0, 9, 10), (1, 0, 10), (1, 9, 10)], [None, 10, 19]),
        ([(1, 10, 100), (3, 10, 100)], [None, 210]),
        ([(1, 50, None), (1, 100, None), (2, 150, None), (2, 200, None)], [None, None, None, None]),
        ([(7, 10, None), (7, 20, None), (8, 10, None)], [None, None, 150]),
    ],
)
def test_steps_are_counted_over_epochs(rows: list[tuple[int, int, int | None]], totals: list[int | None]) -> None:
    """Where a line counts them from the start of its epoch; not where the job counts them over all epochs itself."""
    given = [{"epoch": e, "step": s, **({"steps": n} if n is not None else {})} for e, s, n in rows]
    assert counted(*given) == totals


def test_the_time_of_a_step_is_taken_where_no_line_tells_it() -> None:
    """From what was seen of steps over time."""
    counter = StepCounter()
    rows: list[dict[str, Any]] = [{"step": 10}, {"step": 20}, {"step": 20}, {"step": 25}]
    for row, when in zip(rows, (100.0, 101.0, 102.0, 103.0), strict=True):
        counter.add_to(row, when, is_last=True)
    assert [row.get("step_time") for row in rows] == [None, 0.1, None, 0.4]


def last_after(log: GrowingLog, data: bytes, seconds: float) -> tuple[float, dict[str, Any]]:
    """Write data that comes so much later; return how much later its last row is said to have come, and the row."""
    log.write(data)
    written = time.time() + seconds
    os.utime(log.path, (written, written))
    log.ahead = seconds + 0.5
    when, values = log.metrics.read(20, LIMIT)[-1]
    return when - written + seconds, values


@pytest.mark.parametrize("noise", [b"", b"a long text\n" * 1000])
def test_a_long_text_after_a_step_does_not_change_its_time(log: GrowingLog, noise: bytes) -> None:
    """As a table that a job prints after each step."""
    last_after(log, loss_lines(1, 2) + noise, 1)
    when, values = last_after(log, loss_lines(3, 7) + 2 * noise, 11)
    assert when == pytest.approx(11, abs=0.1)
    assert values["step_time"] == pytest.approx(2, rel=0.1)


def test_a_text_that_may_have_come_later_gives_no_step_time(log: GrowingLog) -> None:
    """The traceback of a rank that fails comes at once or much later than its last step."""
    last_after(log, loss_lines(1, 2), 1)
    _, values = last_after(log, loss_lines(3, 7) + b"Traceback (most recent call last):\n" * 9, 11)
    assert (values["step"], values.get("step_time")) == (7, None)


def test_the_time_of_a_step_that_lines_tell_is_left_alone() -> None:
    """It is more exact than what an agent sees."""
    counter = StepCounter()
    rows: list[dict[str, Any]] = [{"step": 10, "step_time": 0.5}, {"step": 20}]
    for second, row in enumerate(rows):
        counter.add_to(row, float(second), is_last=True)
    assert [row.get("step_time") for row in rows] == [0.5, None]


@pytest.mark.parametrize(("most", "chosen"), [(1, [9]), (2, [0, 9]), (4, [0, 3, 6, 9]), (20, list(range(10)))])
def test_some_of_many_are_chosen_evenly(most: int, chosen: list[int]) -> None:
    """The first and the last among them."""
    assert list(spread(range(10), most)) == chosen


def test_rows_with_nan_are_chosen_too() -> None:
    """A few of them, beyond the number that was asked for."""
    rows: list[Any] = [(float(n), {"loss": "nan" if n == 5 else 0.5}) for n in range(100)]
    assert [when for when, _ in spread_rows(rows, 2)] == [0.0, 5.0, 99.0]


def test_a_fault_in_measuring_costs_the_metrics_and_not_the_job(tmp_path: Path) -> None:
    """It is told once, and ranks end as they end."""
    wrong = order(patterns=[{**order()["patterns"][0], "id": "wrong", "regex": "(", "literals": ["loss"]}])
    with driven_agent(tmp_path) as agent:
        agent.run("echo loss: 1; echo loss: 2; exit 3", metrics=wrong)
        events = agent.until("exited")
    assert events[-1]["code"] == 3
    (note,) = [event["text"] for event in events if event["ev"] == "agent-note"]
    assert note.startswith("metrics are not measured any more: ")
