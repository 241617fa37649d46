"""Scanning logs in blocks: the same findings wherever a block ends, bounded memory, and no line that is overlooked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mslaunch.diagnose.logs.scan import LONGEST, TRACEBACK_LIMIT, Findings, Scanner, scan
from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.diagnose.patterns.pattern import built_in_patterns, match_line

LOGS = Path(__file__).parents[1] / "fixtures" / "msrun_logs"
CHAIN = b"""noise
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in g
ValueError: two
epoch: 2 step: 7, loss is 1
[ERROR] HCCP(4242,python):2026-11-16-02:04:06.293.000 EJ0004 [check][ip]fail
"""


def in_blocks(data: bytes, size: int) -> Findings:
    scanner = Scanner()
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])
    return scanner.finish()


@pytest.mark.parametrize("path", sorted(LOGS.rglob("*.log")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_blocks_of_any_size_give_the_same_findings(path: Path) -> None:
    """An exception, a line or a time that spans two blocks is found as if there were one."""
    data = path.read_bytes() + CHAIN
    whole = in_blocks(data, len(data))
    for size in (97, 1000, 4096):
        assert in_blocks(data, size) == whole


@given(size=st.integers(1, len(CHAIN)))
def test_a_chain_of_exceptions_may_be_cut_anywhere(size: int) -> None:
    """The chain is one exception, with the line numbers of the log."""
    found = in_blocks(CHAIN, size)
    (raised,) = found.raised
    assert (raised.line, raised.end, raised.summary) == (2, 10, "ValueError: two")
    (hit,) = found.hits
    assert (hit.line, hit.match.pattern.id, hit.time is not None) == (12, "device-ip", True)
    assert (found.lines, found.last_step, found.last_time) == (12, (2, 7), hit.time)


def test_no_pattern_is_overlooked_among_other_lines() -> None:
    """The quick test by literals lets every line through that a pattern matches."""
    wrong = []
    for pattern in built_in_patterns():
        log = scan(["epoch: 1 step: 2, loss is 3", pattern.example, "saved 12 files"])
        if [(hit.line, hit.match) for hit in log.hits] != [(2, match_line(pattern.example))]:
            wrong.append(pattern.id)
    assert wrong == []


@pytest.mark.parametrize(
    ("regex", "literals"),
    [
        (r"the (?:a|b) (\d+) not found", {" not found"}),
        (r"\bEI0019\b|\bEJ0003\b", {"EI0019", "EJ0003"}),
        (r"(?:one )?two three", {"two three"}),
        (r"(?:(?:alpha)+|beta)\d", {"alpha", "beta"}),
        (r"(?i)failed", None),
        (r"(?i:failed) here", {" here"}),
        (r"\d+ of \d+", {" of "}),
        (r"failed|\d+", None),
        (r"a.b.c", None),
    ],
)
def test_literals_that_a_regex_needs(regex: str, literals: set[str] | None) -> None:
    """Every match holds one of them; where none is long enough, the regex is tried on every line."""
    assert required_literals(regex) == literals


@given(st.sampled_from([pattern.regex for pattern in built_in_patterns()]), st.data())
def test_whatever_a_pattern_matches_holds_one_of_its_literals(regex: str, data: st.DataObject) -> None:
    """Also texts that nobody has thought of."""
    text = data.draw(st.from_regex(re.compile(regex, re.ASCII)))
    assert any(literal in text for literal in required_literals(regex) or {""})


def test_a_line_without_end_is_one_line() -> None:
    """Memory stays bounded, and the numbers of later lines stay right."""
    scanner = Scanner()
    for _ in range(12):
        scanner.feed(b"x" * (LONGEST // 4))
    scanner.feed(b"\nTraceback (most recent call last):\nValueError: end\n")
    (raised,) = scanner.finish().raised
    assert raised.line == 2


def test_an_exception_without_end_is_cut() -> None:
    """Its head and its tail are kept, and what was left out is told."""
    scanner = Scanner()
    scanner.feed(b"Traceback (most recent call last):\n")
    for _ in range(10):
        scanner.feed(b'  File "a.py", line 1, in f\n' * 20000)
        assert len(scanner._rest) <= 2 * LONGEST
    first = scanner.finish().raised[0]
    assert len(first.traceback) < TRACEBACK_LIMIT + 100
    assert "characters left out" in first.traceback


def test_the_first_of_each_pattern_outlives_a_million_others() -> None:
    """What is kept of a log is bounded, and a cause in the middle of it is kept."""
    victims = ["EI0006: Getting socket times out."] * 3000
    found = scan([*victims, "EJ0002: The environment is abnormal: the NPU network port is down.", *victims])
    assert len(found.hits) < 1100
    assert [hit.line for hit in found.hits if hit.match.pattern.id == "npu-port-down"] == [3001]


def test_an_exception_after_a_progress_bar_is_found() -> None:
    """A bar ends in a carriage return, not in a newline."""
    found = scan(["10%\r20%\rTraceback (most recent call last):", '  File "a.py", line 1', "ValueError: x"])
    assert [(raised.line, raised.summary) for raised in found.raised] == [(1, "ValueError: x")]


def test_an_exception_group_is_one_exception() -> None:
    """Its summary is the group's own line."""
    lines = ["  + Exception Group Traceback (most recent call last):", '  |   File "a.py", line 1, in <module>']
    lines += ["  | ExceptionGroup: many (1 sub-exception)", "  +-+---------------- 1 ----------------"]
    lines += ["    | ValueError: x", "    +------------------------------------", "after"]
    (raised,) = scan(lines).raised
    assert (raised.line, raised.end, raised.summary) == (1, 6, "ExceptionGroup: many (1 sub-exception)")


def test_the_source_in_a_traceback_is_no_message() -> None:
    """A library's line that would raise a known error stands there with its placeholder."""
    source = "    raise ValueError(\"For 'load_checkpoint', the checkpoint file: {} does not exist\")"
    message = "ValueError: For 'load_checkpoint', the checkpoint file: /a.ckpt does not exist"
    for label in ("", "[rank1]: "):
        lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', source, message]
        (hit,) = scan([f"{label}{line}" for line in lines]).hits
        assert hit.match.summary == "The checkpoint /a.ckpt is not there."
