"""The table of lines that tell metrics: every row reads its own example, and no other row takes it away."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from mslaunch.agent.metrics.line_patterns import LinePatterns
from mslaunch.documents.row_table import parse_rows
from mslaunch.metrics.order import checked_pattern, metrics_order
from mslaunch.plan.model import LinePattern
from tests.conftest import ROOT

ROWS = yaml.safe_load((ROOT / "mslaunch/metrics/lines.yaml").read_text())


def read(line: str, *asked: LinePattern) -> dict[str, Any]:
    """Read a line as an agent does."""
    order = metrics_order(asked, 8, "CPU")
    assert order is not None
    return LinePatterns(order["patterns"], lambda _: None).read(line.encode())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_reads_its_own_example(row: dict[str, Any]) -> None:
    """All rows are tried, in the order of the table."""
    assert read(row["example"]) == pytest.approx(row["values"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_a_row_is_complete(row: dict[str, Any]) -> None:
    """Its example holds one of its literals, its groups are the metrics, and the source of the format is named."""
    order = metrics_order((), 8, "CPU")
    assert order is not None
    (pattern,) = [pattern for pattern in order["patterns"] if pattern["id"] == row["id"]]
    regex = re.compile(pattern["regex"])
    assert pattern["fields"] == [name for name, _ in sorted(regex.groupindex.items(), key=lambda p: p[1])]
    assert regex.groups == len(pattern["fields"])
    assert any(literal in row["example"] for literal in row["literals"])
    assert row["framework"]
    assert row["source"]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("{ Epoch:[ 1/ 2], step:[ 10/ 100], loss: 3.2, per_step_time: 120ms, lr: 1e-05, …", {"step": 10, "loss": 3.2}),
        ("Epoch: [1/2], batch: [1/2], loss: 0.945465, lr: 0.000000, time: 11.742272s", {"lr": 0.0, "steps": 2}),
        ("{'loss': 0.3, 'epoch': 1.0}", {"loss": 0.3, "epoch": 1.0}),
        ("{'loss': '0.3', 'learning_rate': '1e-05', 'epoch': '1.0'}", {"loss": 0.3, "lr": 1e-5, "epoch": 1.0}),
        ("{'loss': nan, 'epoch': 1.0}", {"loss": "nan"}),
        ("epoch: 1 step: 25, loss is 0.4217, classification 0.4, held-out accuracy 0.9", {"step": 25, "loss": 0.4217}),
        ("ValueError: In epoch: 1 step: 3, loss is NAN or INF, training process cannot", {"step": 3, "loss": "nan"}),
        ("epoch: 1 step: 2, loss is -inf", {"loss": "-inf"}),
        ("Epoch [1/10], Step [100/600], Loss: 0.5", {"epoch": 1, "epochs": 10, "step": 100, "steps": 600, "loss": 0.5}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", {"epoch": 1, "loss": 2.3}),
        ("iter 10 loss 0.5 lr 0.01", {"step": 10, "loss": 0.5, "lr": 0.01}),
        ("loss: 1.25e-3", {"loss": 1.25e-3}),
        (
            "epoch: 1 step: 25, loss is 0.5, lr: 0.01, per step time: 123.0 ms",
            {"epoch": 1, "step": 25, "loss": 0.5, "lr": 0.01, "step_time": 0.123},
        ),
        (
            "epoch: [  1/ 90], epoch time:  51.3 s, steps:   625, per step time: 82.0 ms, avg loss: 0.51234, lr: 0.05",
            {"epoch": 1, "epochs": 90, "step": None, "steps": None, "loss": 0.51234, "lr": 0.05, "step_time": 0.082},
        ),
        ("epoch[3], epoch time: 8.2s, per step time: 0.5s, loss=0.25, lr=0.01", {"epoch": 3, "step_time": 0.5}),
        ("epoch: [ 1/ 90], step:[ 10/ 625], loss:[5.1/5.2]", {"epoch": 1, "step": 10, "steps": 625, "loss": 5.1}),
        ("E: 2, S: 15, Loss: 0.1, ImageLoss: 3", {"epoch": 2, "step": 15, "loss": 0.1}),
        ("step time: 5, loss: 0.5", {"loss": 0.5, "step_time": None}),
        ("epoch 1.5 of 3: loss 0.5, batch size: 32", {"loss": 0.5, "epoch": None, "step": None}),
        ('{"step": 3, "loss": 0.5, "best": {"epoch": 2, "lr: 0.1": 1}}', {"step": 3, "epoch": None, "lr": None}),
        (
            "Epoch 2/3:   8%|8   | 1/12 [00:02<00:22,  2.00s/it, loss=nan]",
            {"epoch": 2, "epochs": 3, "step": 1, "steps": 12, "loss": "nan", "step_time": 2.0},
        ),
        (
            " 50%|##  | 4/8 [00:01<00:01,  4.00it/s, train_loss=0.5, val_loss=0.7]",
            {"step": 4, "steps": 8, "loss": 0.5, "step_time": 0.25},
        ),
        (
            "loss: 0.5:  50%|##  | 4/8 [00:01<00:01,  4.00it/s]",
            {"step": 4, "steps": 8, "loss": 0.5, "step_time": 0.25},
        ),
        ('INFO {"step": 3, "loss": NaN, "nested": {"x": 1}}', {"step": 3, "loss": "nan"}),
    ],
)
def test_further_lines_are_read(line: str, values: dict[str, Any]) -> None:
    """Forms of lines besides those of the table's examples."""
    found = read(line)
    assert {name: found.get(name) for name in values} == values


@pytest.mark.parametrize(
    "line",
    [
        "val loss: 0.5",
        "val_loss=0.5",
        "the loss scale is 1024",
        "loss_scale: 65536",
        '{"level": "info", "pid": 17, "line": 3}',
        "{'a': 1}",
        "nothing at all",
        "packet loss: none",
    ],
)
def test_a_line_that_tells_no_metric_is_left_alone(line: str) -> None:
    """Losses of an evaluation, settings and objects about something else."""
    assert read(line) == {}


def test_a_metric_cannot_be_called_as_another_key_of_a_row() -> None:
    """A JSON line may hold a time or a rank of its own."""
    assert read('{"step": 3, "time": 1.5, "rank": 7, "count": 2, "not a name": 1}') == {"step": 3}


def test_metrics_of_the_job_are_added_to_what_a_line_tells() -> None:
    """On lines of their own and on lines of the table."""
    acc = LinePattern("acc", r"acc: ([\d.]+)")
    assert read("validation acc: 0.75", acc) == {"acc": 0.75}
    assert read("step 3: loss=0.5 acc: 0.75", acc) == {"step": 3, "loss": 0.5, "acc": 0.75}


def test_a_pattern_that_takes_long_is_given_up() -> None:
    """It is named in a sentence, once, and the others go on."""
    notes: list[str] = []
    order = metrics_order((LinePattern("slow", r"(x+x+)+y(\d)"),), 8, "CPU")
    assert order is not None
    patterns = LinePatterns(order["patterns"], notes.append)
    for _ in range(3):
        assert patterns.read(b"step 3: loss=0.5 " + 100 * b"x") == {"step": 3, "loss": 0.5}
    assert len(notes) == 1
    assert notes[0].startswith("launch.metrics slow: its regular expression took more than 50 ms on one line")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- id: a\n", "literals, regex is missing"),
        ("- {id: a, literals: [x], regex: '('}", "regex: missing )"),
        ("- {id: a, literals: [x], regex: 'x (.*)'}", "give every group a name"),
        ("- {id: a, literals: [x], regex: '<rank:int>'}", "no metric can be called 'rank'"),
        ("- {id: a, literals: [x], regex: 'x*'}", "matches an empty line"),
        ("- {id: a, literals: x, regex: 'x'}", "a list of texts"),
        ("- {id: a, literal: x, regex: 'x'}", "did you mean 'literals'"),
        ("a: 1", "a list of rows is wanted"),
        ("{", "not valid YAML"),
    ],
)
def test_a_wrong_row_of_a_plug_in_is_named(text: str, words: str) -> None:
    """The file and what is wrong, in one line."""
    rows, problems = parse_rows(text, "table.yaml", "rows", checked_pattern)
    assert rows == []
    assert len(problems) == 1
    assert problems[0].startswith("table.yaml")
    assert words in problems[0]


def test_a_group_is_written_short() -> None:
    """A whole number, or any number."""
    pattern = checked_pattern({"id": "a", "literals": ["a"], "regex": "a <step:int> <loss:number>"})
    assert pattern["fields"] == ["step", "loss"]


@pytest.mark.parametrize(("ranks", "every", "most"), [(1, 1, 20), (8, 1, 20), (256, 1, 1), (10_000, 28, 1)])
def test_many_ranks_are_looked_at_less_often(ranks: int, every: float, most: int) -> None:
    """The launcher gets at most some hundred rows a second."""
    order = metrics_order((), ranks, "CPU")
    assert order is not None
    assert (int(order["every"]), order["most"]) == (every, most)
    assert ranks * order["most"] / order["every"] + ranks / order["resources"] <= 500


def test_nothing_is_measured_where_that_is_asked() -> None:
    """`launch.metrics: false`."""
    assert metrics_order(None, 8, "CPU") is None
