"""Bounds of what an exception may say, and what of a log may reach a terminal."""

from __future__ import annotations

import json
import re
import sys

import pytest

from mslaunch.text import cut_middle, first_line, plain, plain_output
from tests.conftest import Bench

RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_a_message_of_a_megabyte_is_cut_everywhere_but_in_the_log(bench: Bench) -> None:
    """error.json, run.json, events and the screen hold its beginning and its end, and say so."""
    bench.write("train.py", "raise ValueError('begin' + 'x' * 1_000_000 + 'end')\n")
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 1
    assert len(done.stdout) < 50_000
    for name in ("run.json", "events.jsonl", "rank_0/error.json"):
        assert (bench.latest / name).stat().st_size < 100_000
    verdict = bench.record()["verdict"]
    assert verdict["summary"].startswith("ValueError: beginxxx")
    assert verdict["summary"].endswith("xxxend")
    assert "characters left out, see log.txt" in verdict["summary"]
    assert len(bench.log(0)) > 1_000_000


@pytest.mark.parametrize(
    "script",
    [
        "error = ValueError('deep')\nfor i in range(5000):\n    outer = ValueError(f'deep')\n"
        "    outer.__cause__ = error\n    error = outer\nraise error\n",
        "a, b = ValueError('deep'), ValueError('b')\na.__cause__ = b\nb.__cause__ = a\nraise a\n",
        "def f(): f()\ntry:\n    f()\nexcept RecursionError:\n    raise ValueError('deep')\n",
        "class Odd(Exception):\n    def __str__(self): raise KeyError\nprint('deep')\nraise Odd\n",
    ],
    ids=["chain", "circle", "recursion", "no text"],
)
def test_odd_exceptions_are_reported_and_bounded(bench: Bench, script: str) -> None:
    """A chain of thousands, one that leads back to itself, a stack of thousands, and one that cannot be shown."""
    bench.write("train.py", script)
    done = bench.mslaunch("train", "-n", "1")
    assert done.returncode == 1
    assert "First to fail: rank 0" in done.stdout
    error = json.loads((bench.latest / "rank_0" / "error.json").read_text())
    assert error["type"] in ("ValueError", "Odd")
    assert (bench.latest / "rank_0" / "error.json").stat().st_size < 100_000
    assert (bench.latest / "run.json").stat().st_size < 100_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_an_exception_group_is_bounded(bench: Bench) -> None:
    """A group of a thousand groups is named by its own line."""
    bench.write(
        "train.py",
        "raise ExceptionGroup('all', [ExceptionGroup('some', [ValueError('x' * 999)] * 100) for _ in range(1000)])\n",
    )
    assert bench.mslaunch("train", "-n", "1").returncode == 1
    assert bench.record()["verdict"]["summary"] == "ExceptionGroup: all (1000 sub-exceptions)"
    assert (bench.latest / "run.json").stat().st_size < 100_000


def test_control_characters_of_a_log_do_not_reach_the_terminal(bench: Bench) -> None:
    """Not from the lines that are shown, not from the verdict, and not from status or diagnose."""
    bench.write(
        "train.py",
        "print('\\x1b[2J\\x1b]0;title\\x07 shown \\x1b[31mred')\nraise ValueError('\\x1b[1A\\x9b2K \\u202ereversed')\n",
    )
    done = bench.mslaunch("train", "-n", "1")
    shown = done.stdout.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert not RAW.search(shown), RAW.search(shown)
    assert "\x1b[31mred\x1b[0m\n" in done.stdout
    assert r"ValueError: \x1b[1A\x9b2K \u202ereversed" in done.stdout
    for verb in ("status", "diagnose"):
        assert not RAW.search(bench.mslaunch(verb).stdout)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain\ttext é 中", "plain\ttext é 中"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),
        ("10%\r20%\r30%\r", "30%"),
        ("\x1b[2Jgone\x07", r"\x1b[2Jgone\x07"),
        ("\ud800", r"\ud800"),
    ],
)
def test_lines_of_a_log_keep_their_colours_only(line: str, shown: str) -> None:
    """A progress bar shows its last state; everything else that moves the cursor is written out."""
    assert plain_output(line) == shown


def test_texts_are_cut_in_the_middle() -> None:
    """Both ends are kept."""
    text = "ab" + "x" * 200 + "gh"
    assert cut_middle(text, 84) == "ab\n... 200 characters left out ...\ngh"
    assert cut_middle(text, 204) == text
    assert first_line("\x1bone\ntwo") == r"\x1bone"
    assert plain("a\nb") == r"a\nb"
