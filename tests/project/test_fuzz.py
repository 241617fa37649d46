"""The short form of `make fuzz`: a few hundred cases at every border."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from fuzz.borders import BORDERS
from fuzz.run import Border, make_case, run_border
from mslaunch.errors import RequestError
from tests.conftest import ROOT

CASES = 300
PAGES = 100
"""Cases for which a whole page is made."""


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: border.name)
def test_hostile_inputs_are_read_or_refused(border: Border) -> None:
    """No traceback, no hang, no crash, within bounds of time and memory."""
    cases = range(PAGES if border.name.startswith("page-") else CASES)
    found = run_border(border, seed=1, cases=cases, processes=2).findings
    assert [(one.what, one.where, one.case) for one in found.values()] == []


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: border.name)
def test_a_case_is_the_same_for_the_same_seed(border: Border) -> None:
    """So a finding can be repeated, and another seed makes others."""
    assert make_case(border, 1, 7) == make_case(border, 1, 7)
    assert [make_case(border, 1, case) for case in range(5)] != [make_case(border, 2, case) for case in range(5)]


def _same(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    del samples
    return random.choice((data, b"bad"))


def _border(ends: Callable[[], object]) -> Border:
    def open_border(folder: Path) -> Callable[[bytes], object]:
        del folder
        return lambda data: ends() if data == b"bad" else None

    return Border("made-up", (b"good",), _same, open_border)


def _raise() -> None:
    raise KeyError("x")


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("ends", "what"),
    [
        (_raise, "KeyError"),
        (_hang, "OutOfTime"),
        (lambda: bytearray(4 << 30), "MemoryError"),
        (_crash, "the process ended with -9"),
    ],
)
def test_whatever_is_no_sentence_is_a_finding(ends: Callable[[], object], what: str) -> None:
    """An exception, a hang, too much memory, a crash; the cases that follow are run all the same."""
    found = run_border(_border(ends), seed=1, cases=range(4), processes=2)
    assert {one.what for one in found.findings.values()} == {what}
    assert found.count == sum(make_case(_border(ends), 1, case) == b"bad" for case in range(4))


def test_a_refusal_in_one_sentence_is_no_finding() -> None:
    """That is how a wrong input should end."""

    def refuse() -> None:
        raise RequestError("no")

    assert run_border(_border(refuse), seed=1, cases=range(4), processes=2).count == 0


def test_the_command_says_how_many_cases_it_ran() -> None:
    """One line a border, and code 0 without a finding."""
    command = [sys.executable, "-m", "fuzz", "--cases", "20", "--border", "hosts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("hosts: 20 cases, 0 findings (")
    assert done.returncode == 0
