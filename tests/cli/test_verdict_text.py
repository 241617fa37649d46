"""The verdict on the screen: said once, and its paths can be copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mslaunch.cli.console.last_lines import leave_out, other_lines
from mslaunch.diagnose.verdict import Verdict
from tests.beds.terminal_bed import run_in_terminal
from tests.conftest import Bench

CHAINED = """\
def load():
    raise KeyError("no such key")
print("before")
try:
    load()
except KeyError as error:
    raise ValueError("line one\\nline two") from error
"""
FIRST_FRAME = "in load"


def test_a_path_in_the_verdict_is_one_piece(bench: Bench) -> None:
    """In a narrow terminal too: nothing stands beside a line, and none is broken by mslaunch."""
    bench.write("train.py", "raise ValueError('x')\n")
    shown = run_in_terminal(bench, "train", "-n", "1", columns=40)
    verdict = shown[shown.index("── why run") :].splitlines()
    assert any(line.startswith(f"log:    {bench.latest}/rank_0/log.txt") for line in verdict), shown
    assert verdict[-1].removeprefix("\x1b[31m").removesuffix("\x1b[0m") == "─" * 40


@pytest.mark.parametrize("verb", ["status", "diagnose"])
def test_status_and_diagnose_show_the_same_verdict(bench: Bench, verb: str) -> None:
    """Between two rules in a terminal."""
    bench.write("train.py", "raise ValueError('x')\n")
    bench.mslaunch("train", "-n", "1")
    assert f"── why run {bench.latest.name} failed ─" in run_in_terminal(bench, verb, columns=100)


def test_a_chained_traceback_is_not_among_the_last_lines(bench: Bench) -> None:
    """Once, in the verdict; what the rank printed before is there still."""
    bench.write("train.py", CHAINED)
    shown = bench.mslaunch("train", "-n", "1", "--tail", "none").stdout
    assert shown.count(FIRST_FRAME) == 1
    assert "The last lines of its log:\n    before\n" in shown


def test_a_traceback_that_is_on_the_screen_is_not_repeated(bench: Bench) -> None:
    """The verdict has its last frame and its message; `diagnose` has all of it."""
    bench.write("train.py", CHAINED)
    shown = bench.mslaunch("train", "-n", "1").stdout
    verdict = shown[shown.index("First to fail") :]
    assert shown.count(FIRST_FRAME) == 1
    assert "Its last frame (the whole traceback is above):\n    File " in verdict
    assert "raise ValueError" in verdict
    assert "\n  line two\n" in verdict
    assert FIRST_FRAME in bench.mslaunch("diagnose").stdout


@pytest.mark.parametrize("message", ["'\\n'.join(f'row {n}' for n in range(50000)) + 'end'", "'x' * 500_000 + 'end'"])
def test_a_traceback_that_was_cut_is_not_among_the_last_lines(bench: Bench, message: str) -> None:
    """Neither the part that the verdict has nor the part that it has not, in many lines or in one."""
    bench.write("train.py", f"print('before')\nraise ValueError({message})\n")
    shown = bench.mslaunch("train", "-n", "1").stdout
    verdict = shown[shown.index("First to fail") :]
    assert "The last lines" not in verdict


def test_a_traceback_longer_than_what_is_read_is_left_out(tmp_path: Path) -> None:
    """Its beginning stands above the end of the log that is read."""
    rows = [f"row {number}" for number in range(20000)]
    (tmp_path / "log.txt").write_text("\n".join(["Traceback (most recent call last):", *rows, "after"]) + "\n")
    traceback = "Traceback (most recent call last):\nrow 0\n... left out ...\nrow 19999"
    assert other_lines(Verdict(log=str(tmp_path / "log.txt"), traceback=traceback)) == ["after"]


def test_the_same_traceback_that_was_printed_before_stays() -> None:
    """Only the last one is the verdict's."""
    traceback = ["Traceback (most recent call last):", "  File 'a', line 1", "ValueError: x"]
    lines = [*traceback, "retrying", *traceback, "bye"]
    assert leave_out(lines, traceback, is_whole=True) == [*traceback, "retrying", "bye"]


def test_the_state_of_a_progress_bar_is_one_of_the_last_lines(tmp_path: Path) -> None:
    """Not every state that it had."""
    (tmp_path / "log.txt").write_bytes(b"start\n 1%\r 2%\r 3%\r\nTraceback\n")
    assert other_lines(Verdict(log=str(tmp_path / "log.txt"))) == ["start", " 3%", "Traceback"]


@pytest.mark.parametrize(
    ("argument", "words"),
    [("'please set DATA_DIR'", "please set DATA_DIR"), ("'\\nfirst\\nsecond'", "first"), ("('a', 1)", "('a', 1)")],
)
def test_the_text_of_sys_exit_is_the_headline_and_the_summary(bench: Bench, argument: str, words: str) -> None:
    """It is recorded as well, printed to the log as Python does, and the code is 1."""
    bench.write("train.py", f"import sys\nsys.exit({argument})\n")
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 1
    assert f"mslaunch: rank 0 on localhost: {words}\n" in done.stdout
    verdict = bench.record()["verdict"]
    assert (verdict["summary"].splitlines()[0], verdict["cause"], verdict["traceback"]) == (words, "exit", None)
    error = json.loads((bench.latest / "rank_0" / "error.json").read_text())
    assert error["type"] == "SystemExit"
    assert bench.log(0).count(words) == 1


@pytest.mark.parametrize(
    ("argument", "code", "words"),
    [("3", 3, "exited with code 3"), ("''", 1, "exited with code 1"), ("259", 3, "exited with code 3")],
)
def test_an_exit_without_a_text_is_named_by_its_code(bench: Bench, argument: str, code: int, words: str) -> None:
    """An empty text says nothing, and is a failure all the same."""
    bench.write("train.py", f"import sys\nsys.exit({argument})\n")
    done = bench.mslaunch("train", "-n", "1")
    assert (done.returncode, bench.record()["verdict"]["summary"]) == (code, words)


@pytest.mark.parametrize("argument", ["", "None", "0", "False"])
def test_an_exit_without_a_code_is_a_success(bench: Bench, argument: str) -> None:
    """As in Python."""
    bench.write("train.py", f"import sys\nsys.exit({argument})\n")
    assert bench.mslaunch("train", "-n", "1").returncode == 0


def test_the_text_of_sys_exit_is_bounded(bench: Bench) -> None:
    """A megabyte of it stays in the log."""
    bench.write("train.py", "import sys\nsys.exit('begin' + 'x' * 1_000_000)\n")
    assert bench.mslaunch("train", "-n", "1").returncode == 1
    assert (bench.latest / "run.json").stat().st_size < 100_000
    assert bench.record()["verdict"]["summary"].startswith("beginxxx")


def test_a_traceback_that_was_printed_before_sys_exit_is_shown(bench: Bench) -> None:
    """A script that catches an exception, prints it and leaves has told why."""
    bench.write(
        "train.py", "import sys, traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()\nsys.exit('bad')\n"
    )
    bench.mslaunch("train", "-n", "1")
    verdict = bench.record()["verdict"]
    assert verdict["summary"] == "bad"
    assert "ZeroDivisionError" in verdict["traceback"]


def test_a_forked_child_does_not_speak_for_its_rank(bench: Bench) -> None:
    """Neither by a text nor by an end that is well."""
    bench.write(
        "train.py",
        "import os, sys\nif (child := os.fork()) == 0: sys.exit('the child')\nos.waitpid(child, 0)\n"
        "if (child := os.fork()) == 0: sys.exit(0)\nos.waitpid(child, 0)\nos.kill(os.getpid(), 9)\n",
    )
    done = bench.mslaunch("train", "-n", "1")
    assert (done.returncode, bench.record()["verdict"]["summary"]) == (137, "was killed by SIGKILL")


def test_lines_of_healthy_runs_are_not_among_the_last_lines(tmp_path: Path) -> None:
    """MindSpore's retries while the cluster forms read like the cause; what the script printed stays."""
    retry = "[WARNING] DISTRIBUTED(1,7f,python) BuildCluster] Topology build timed out., retry(1/1200)."
    (tmp_path / "log.txt").write_text(f"loss 0.5\n{retry}\n")
    assert other_lines(Verdict(log=str(tmp_path / "log.txt"))) == ["loss 0.5"]
