"""Metrics of whole jobs: lines of the usual frameworks and reports, of all ranks, whoever starts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, Bench

LINES = {
    "MindCV": "Epoch: [1/2], batch: [7/9], loss: 0.5, lr: 0.000100, time: 0.25s",
    "MindFormers": "{ Epoch:[  1/  2], step:[    7/    9], loss: 0.500, per_step_time: 250ms, lr: 1e-05, x",
    "LossMonitor": "epoch: 1 step: 7, loss is 0.5",
    "functional": "epoch: 1 step: 7, loss is 0.5000, classification 0.4, held-out accuracy 0.9",
    "hand-written": "step 7: loss=0.5",
}


def values_of(bench: Bench, rank: int) -> dict[str, Any]:
    """The last value of each metric of a rank."""
    values: dict[str, Any] = {}
    for line in (bench.latest / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        values |= row if row.get("rank") == rank else {}
    return values


@pytest.mark.parametrize("framework", LINES)
def test_step_and_loss_of_all_ranks_are_read(bench: Bench, framework: str) -> None:
    """No rank is shown, the job lasts a moment, and the script knows nothing of it."""
    bench.write("train.py", f"print({LINES[framework]!r})\n")
    done = bench.mslaunch("train", "-n", "2", "--tail", "none")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert (values_of(bench, rank)["step"], values_of(bench, rank)["loss"]) == (7, 0.5)


def test_a_trainer_in_the_style_of_hugging_face_is_read(bench: Bench) -> None:
    """Its lines tell the loss, its progress bar the step."""
    bench.write(
        "train.py",
        "print({'loss': 0.5, 'learning_rate': 1e-05, 'epoch': 1.5})\n"
        "print(' 10%|#         | 10/100 [00:05<00:45,  2.00it/s]', end='\\r')\n",
    )
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    assert {"loss": 0.5, "lr": 1e-05, "epoch": 1.5, "step": 10, "steps": 100}.items() <= values_of(bench, 0).items()


@pytest.mark.parametrize("method", ["dynamic", "rank-table", "mpirun"])
def test_reports_come_from_ranks_whoever_starts_them(bench: Bench, method: str, request: pytest.FixtureRequest) -> None:
    """The last ones too, of a rank that fails."""
    if method == "mpirun":
        request.getfixturevalue("needs_mpirun")
    bench.write(
        "train.py",
        "import os\nfrom mslaunch.runtime import report\n"
        "for step in range(1, 1001): report(step=step, tokens=8 + int(os.environ['RANK_ID']))\n"
        "raise ValueError('x')\n",
    )
    done = bench.mslaunch("train", "-n", "1", "--method", method)
    assert done.returncode == 1, done.stderr
    assert {"step": 1000, "tokens": 8}.items() <= values_of(bench, 0).items()


def test_a_metric_of_the_jobs_own_is_read(bench: Bench) -> None:
    """`launch.metrics` names it, in whatever line it stands."""
    bench.write("cfg.yaml", "launch:\n  config_arg: null\n  metrics: [{name: acc, regex: 'acc: ([\\d.]+)'}]\n")
    bench.write("train.py", "print('epoch 3 acc: 0.75')\n")
    assert bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").returncode == 0
    assert values_of(bench, 0)["acc"] == 0.75


def test_nothing_is_measured_where_that_is_asked(bench: Bench) -> None:
    """`launch.metrics: false`."""
    bench.write("cfg.yaml", "launch: {config_arg: null, metrics: false}\n")
    bench.write("train.py", "from mslaunch.runtime import report\nreport(step=1)\nprint('loss: 0.5')\n")
    assert bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml").returncode == 0
    metrics = bench.latest / "metrics.jsonl"
    assert not metrics.exists() or "loss" not in metrics.read_text()


def test_a_pattern_that_never_ends_does_not_stall_a_job(bench: Bench) -> None:
    """It is named in a note, and the other metrics are read."""
    bench.write("cfg.yaml", "launch:\n  config_arg: null\n  metrics: [{name: slow, regex: '(x+x+)+y(\\d)'}]\n")
    bench.write("train.py", "print('loss: 0.5 ' + 200 * 'x')\n")
    done = bench.mslaunch("train", "-n", "1", "-c", "cfg.yaml")
    assert done.returncode == 0, done.stderr
    assert values_of(bench, 0)["loss"] == 0.5
    assert "launch.metrics slow: its regular expression took more than" in str(bench.record()["notes"])


def test_the_table_has_the_frameworks_that_the_documentation_names() -> None:
    """A row for each."""
    rows = yaml.safe_load((ROOT / "mslaunch/metrics/lines.yaml").read_text())
    frameworks = " ".join(row["framework"] for row in rows)
    for name in ("LossMonitor", "TimeMonitor", "MindFormers", "MindCV", "MindYOLO", "MindOne", "mindnlp"):
        assert name in frameworks
