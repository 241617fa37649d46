"""`mslaunch compare`: what is equal is one line, what differs is named."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from mslaunch.metrics.rows import Row, Source, Spread
from mslaunch.metrics.series import SeriesTable
from mslaunch.run.compare import (
    CodeChange,
    CodeFile,
    RunFacts,
    compare_facts,
    flatten,
    gather,
    summarize_metrics,
    summarize_speed,
)
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from tests.conftest import Bench

RANK_0 = Source(0, 0)


def section(runs: list[RunFacts], title: str) -> Any:
    return next(one for one in compare_facts(runs).sections if one.title == title)


def test_names_with_the_same_value_are_counted_and_others_named() -> None:
    """A name that one run lacks differs; 1 and 1.0 and true are not the same, and NaN is NaN."""
    nan = float("nan")
    first = RunFacts("a", config={"lr": 0.1, "same": [1, 2], "n": 1, "x": nan, "flag": True})
    second = RunFacts("b", config={"lr": 0.2, "same": [1, 2], "n": 1.0, "x": nan, "new": "y", "flag": 1})
    found = section([first, second], "config")
    assert found.equal == 2
    assert [(one.name, one.values) for one in found.differences] == [
        ("lr", (0.1, 0.2)),
        ("n", (1, 1.0)),
        ("flag", (True, 1)),
        ("new", (None, "y")),
    ]


def test_settings_that_nobody_gave_do_not_differ() -> None:
    """Another version of mslaunch may have other settings, or other words for a default."""
    older = RunFacts(
        "a", settings={"tail": "(0,)", "grace": "10", "old": "1"}, default_settings=frozenset({"tail", "old"})
    )
    newer = RunFacts("b", settings={"tail": "0", "grace": "5"}, default_settings=frozenset({"tail", "grace"}))
    found = section([older, newer], "settings")
    assert [(one.name, one.values) for one in found.differences] == [("grace", ("10", "5"))]


def test_code_is_compared_with_that_of_the_first_run() -> None:
    """As a unified diff; what is no text is named alone."""
    first = RunFacts("a", code={"t.py": CodeFile("x = 1\ny = 2\n"), "same.py": CodeFile(""), "d": CodeFile(None, "p")})
    second = RunFacts("b", code={"t.py": CodeFile("x = 1\ny = 3\n"), "same.py": CodeFile(""), "d": CodeFile(None, "q")})
    third = RunFacts("c", code={**(first.code or {}), "new.py": CodeFile("z\n")})
    found = compare_facts([first, second, third])
    assert found.equal_files == 1
    head = ("--- a/t.py", "+++ b/t.py", "@@ -1,2 +1,2 @@")
    assert found.code == (
        CodeChange("d", "b", "changed", ()),
        CodeChange("t.py", "b", "changed", (*head, " x = 1", "-y = 2", "+y = 3")),
        CodeChange("new.py", "c", "added", ("--- a/new.py", "+++ c/new.py", "@@ -0,0 +1 @@", "+z")),
    )


def test_the_best_of_a_metric_is_the_least_loss_and_the_greatest_accuracy() -> None:
    """Also where rows were thinned; of other names nobody knows."""
    table = SeriesTable()
    table.add([Row(1.0, RANK_0, {"loss": Spread(3.0, 0.5, 9.0), "acc": 0.5, "lr": 0.1}), Row(2.0, RANK_0, {"loss": 2})])
    assert summarize_metrics(table.of(RANK_0), ()) == {
        "loss": 2.0,
        "loss (best)": 0.5,
        "acc": 0.5,
        "acc (best)": 0.5,
        "lr": 0.1,
    }


def test_speed_is_counted_over_epochs() -> None:
    """A step that begins again with each epoch still counts."""
    table = SeriesTable()
    rows = [Row(float(second), RANK_0, {"step": step}) for second, step in ((0, 5), (10, 10), (20, 5), (30, 10))]
    table.add(rows)
    assert summarize_speed(table.of(RANK_0)) == {"steps a second": 15 / 30}


def test_nested_values_have_one_name_each() -> None:
    """Lists and empty mappings are values."""
    assert flatten({"a": {"b": 1, "c": {}}, "d": [{"e": 2}]}) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}]}


def launch(bench: Bench, name: str, rate: float, **env: str) -> RunFolder:
    bench.write("cfg.yaml", f"lr: {rate}\nseed: 1\nlaunch:\n  script: train.py\n  workers: 2\n")
    done = bench.mslaunch("train", "--config", "cfg.yaml", "--run-id", name, **env)
    assert done.returncode == 0, done.stdout
    run = RunFolder(bench.runs / name)
    writer = MetricsWriter(run.metrics)
    writer.write(Row(float(step), RANK_0, {"step": step, "loss": rate / step}) for step in range(1, 9))
    writer.close()
    return run


def test_two_runs_are_compared_in_all_that_they_keep(bench: Bench) -> None:
    """Configuration, code, environment, versions and metrics of real runs; in words and as JSON."""
    bench.write("train.py", "import numpy\nprint(1)\n")
    launch(bench, "one", 0.1, GLOG_v="2", TERM_PROGRAM="tmux", PYENV_SHELL="bash")
    bench.write("train.py", "import numpy\nprint(2)\n")
    launch(bench, "two", 0.2, GLOG_v="3")
    shown = bench.mslaunch("compare", "one", "two")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("run")  # and no empty line
    assert "launch settings: the same\n\nconfig (2 more are the same)\n" in shown.stdout
    assert "\n\n\n" not in shown.stdout
    assert "versions: the same\n" in shown.stdout
    assert "-print(1)" in shown.stdout
    told = json.loads(bench.mslaunch("compare", "one", "two", "--json").stdout)
    assert told["config"]["differences"] == {"lr": [0.1, 0.2]}
    assert told["environment"]["differences"] == {"GLOG_v": ["2", "3"]}
    assert told["metrics"]["differences"]["loss (best)"] == [pytest.approx(0.0125), pytest.approx(0.025)]
    assert [(one["path"], one["kind"]) for one in told["code"]["changes"] if one["path"] != "cfg.yaml"] == [
        ("train.py", "changed")
    ]


def test_output_of_the_launches_is_no_code(bench: Bench) -> None:
    """A file that a launch prints to is not in its own snapshot; what earlier ones printed is not compared."""
    bench.write("train.py", "print(1)\n")
    for name, output in (("a", "a.txt"), ("b", "nohup.out")):
        with (bench.folder / output).open("w") as file:
            command = [bench.program, "train", "-n", "1", "--run-id", name]
            subprocess.run(command, cwd=bench.folder, env=bench.env, stdout=file, check=True, stdin=subprocess.DEVNULL)
        assert not (bench.runs / name / "code" / output).exists()
    (bench.folder / "a.txt").unlink()
    bench.mslaunch("train", "-n", "1", "--run-id", "c")
    assert (bench.runs / "c" / "code" / "nohup.out").exists()
    assert "\ncode: the same" in bench.mslaunch("compare", "a", "c").stdout


def test_a_run_is_the_same_as_itself(bench: Bench) -> None:
    """One line for each part."""
    bench.write("train.py", "print(1)\n")
    launch(bench, "one", 0.1)
    lines = bench.mslaunch("compare", "one", "one").stdout.splitlines()
    assert len(lines) == 8
    assert all(": the same" in line for line in lines)


def test_rank_0_records_the_versions_of_what_it_has_loaded(bench: Bench) -> None:
    """Also of what the script loads later; it is no output of the job."""
    bench.write("train.py", "import numpy\n")
    bench.mslaunch("train", "-n", "2", "--run-id", "one")
    facts = gather(RunFolder(bench.runs / "one"))
    assert {"mslaunch", "python", "numpy"} <= facts.versions.keys()
    assert not (bench.runs / "one" / "rank_1" / "mslaunch_versions.json").exists()
    assert bench.record("one")["outputs"] == []


def test_a_run_that_fails_has_versions_too(bench: Bench) -> None:
    """They may be the reason."""
    bench.write("train.py", "import os, numpy\nos.kill(os.getpid(), 9)\n")
    bench.mslaunch("train", "-n", "1", "--run-id", "one")
    assert "python" in gather(RunFolder(bench.runs / "one")).versions


def test_one_run_is_not_enough(bench: Bench) -> None:
    """It says what is missing."""
    bench.write("train.py", "print(1)\n")
    bench.mslaunch("train", "-n", "1", "--run-id", "one")
    done = bench.mslaunch("compare", "one")
    assert done.returncode == 2
    assert "expected two or more runs, got one." in done.stderr


def test_files_that_hold_anything_are_compared_all_the_same(bench: Bench) -> None:
    """They are left out, or shown as text."""
    bench.write("train.py", "print(1)\n")
    bench.mslaunch("train", "-n", "1", "--run-id", "one")
    names = ("config.json", "rank_0/mslaunch_versions.json", "rank_0/env.log", "metrics.jsonl")
    for text in ("[1]", "{", '{"a": ' * 500, "\0\x1b[31m=x\n"):
        for name in names:
            (bench.runs / "one" / name).write_text(text)
        done = bench.mslaunch("compare", "one", "one")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
