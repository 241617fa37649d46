"""The pattern tables: every row is found by its example and its codes, quickly, and healthy logs raise no alarm."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mslaunch.cli.diagnose import explain
from mslaunch.cli.diagnose.explain import meaning
from mslaunch.diagnose.patterns.literals import required_literals
from mslaunch.diagnose.patterns.pattern import built_in_patterns, checked_pattern, match_line
from mslaunch.diagnose.waiting.line_facts import forms
from mslaunch.documents.row_table import parse_rows
from mslaunch.errors import RequestError
from tests.conftest import ROOT, Bench

PATTERNS = built_in_patterns()
HEALTHY = (ROOT / "tests" / "fixtures" / "healthy.log").read_text().splitlines()
CODES = sorted({code for pattern in PATTERNS for code in pattern.codes})
CANN_CODE = re.compile(r"(?<![A-Za-z\d])E[A-Z\d]\d{4}(?!\d)")
PUT_TOGETHER = (
    "hccl-argument",
    "hccl-if-ip",
    "npu-down-before",
    "pipeline-stages",
    "scheduler-listen",
    "disk-full",
    "data-hang",
)
PAGE = ROOT / "docs" / "failures.md"
MARK = "<!-- table of known failures -->\n"


def printed(code: str) -> str:
    """A line that has nothing but the code to tell."""
    if code.startswith("XID"):
        return f"NVRM: Xid (PCI:0000:01:00): {code[3:]}, pid=1"
    return f"aclrtSynchronizeStream failed, ret: {code}" if code.isdigit() else f"{code}: something happened"


def any_repeats(items: Any) -> Iterator[Any]:
    """Yield the upper limits of all repeats of any character in a parsed regular expression."""
    for name, argument in items:
        kind = str(name)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            if any(str(inner[0]) == "ANY" for inner in argument[2]):
                yield argument[1]
            yield from any_repeats(argument[2])
        elif kind == "SUBPATTERN":
            yield from any_repeats(argument[3])
        elif kind == "BRANCH":
            for branch in argument[1]:
                yield from any_repeats(branch)
        elif kind in ("ASSERT", "ASSERT_NOT"):
            yield from any_repeats(argument[1])


def table() -> str:
    """The known failures, as the documentation has them."""
    known = sorted((pattern for pattern in PATTERNS if pattern.kind != "healthy"), key=lambda pattern: pattern.id)
    rows = [(f"`{row.id}`", row.kind, " ".join(row.codes), meaning(row), row.advice) for row in known]
    cells = [("id", "kind", "codes", "meaning", "advice"), ("---",) * 5, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in cells)


def test_the_documentation_lists_the_known_failures() -> None:
    """docs/failures.md has a generated table; UPDATE_GOLDEN=1 writes it anew."""
    text = PAGE.read_text()
    before = text.partition(MARK)[0]
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(f"{before}{MARK}\n{table()}")
    assert PAGE.read_text() == f"{before}{MARK}\n{table()}"


def test_every_id_and_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain` prints meaning and advice of every id and code, in capitals or not."""
    for name in (*CODES, *(pattern.id for pattern in PATTERNS)):
        for written in (name, name.lower(), name.upper()):
            explain.show(written, None, as_json=True)
            rows = json.loads(capsys.readouterr().out)
            assert rows, name
            for row in rows:
                assert name in (row["id"], *row["codes"]), name
                assert row["summary"], name
                assert row["advice"], name


def test_explaining_on_the_command_line(bench: Bench) -> None:
    """One row for a code, by the code or with a blank in it; the general one comes first."""
    done = bench.mslaunch("diagnose", "--explain", "ei0006")
    assert done.returncode == 0
    assert done.stdout.startswith("hccl-connect-timeout (victim; EI0006)\n  A peer did not connect in time.\n  advice ")
    assert bench.mslaunch("diagnose", "--explain", "Xid 79").stdout.startswith("xid-bus (cause; XID79")


def test_an_unknown_name_gets_the_nearest_ones(bench: Bench) -> None:
    """One sentence, and exit code 2."""
    done = bench.mslaunch("diagnose", "--explain", "hccl-conect-timeout")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "mslaunch: 'hccl-conect-timeout' is not a known failure; the nearest are hccl-connect-timeout (A peer did"
    )
    assert done.stderr.endswith("`mslaunch diagnose --list` shows all.\n")


def test_the_known_failures_are_listed(bench: Bench) -> None:
    """A row each, those of the user too, for people and for scripts; logs are not read."""
    row = "- {id: site-quota, kind: cause, regex: the quota of, summary: 'Quota {1}{2} is used up.', advice: a}\n"
    bench.write("config/mslaunch/patterns.d/site.yaml", row.replace("the quota of", "the quota of (a)(b)"))
    where = str(bench.folder / "config")
    listed = bench.mslaunch("diagnose", "--list", XDG_CONFIG_HOME=where).stdout.splitlines()
    assert listed[0].split() == ["ID", "KIND", "MEANING", "CODES"]
    assert len(listed) == len(PATTERNS) + 2
    assert any(line.split(maxsplit=2) == ["site-quota", "cause", "Quota … is used up."] for line in listed)
    rows = json.loads(bench.mslaunch("diagnose", "--list", "--json").stdout)
    assert {row["id"] for row in rows} == {pattern.id for pattern in PATTERNS}
    refused = bench.mslaunch("diagnose", "logs", "--list")
    assert (refused.returncode, refused.stderr.split(". ")[0]) == (
        2,
        "mslaunch: logs: --list and --explain read no logs",
    )


def test_the_tables_are_large_enough() -> None:
    """What clusters print most is known: more than 200 failures, and none twice."""
    assert sum(pattern.kind != "healthy" for pattern in PATTERNS) > 200
    assert len({pattern.regex for pattern in PATTERNS}) == len(PATTERNS)


def raises_alarm(line: str) -> bool:
    match = match_line(line)
    return match is not None and match.pattern.kind != "healthy"


def longest_repeat(regex: str) -> int:
    """Return how often a regular expression repeats any character at most."""
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    return max((int(limit) for limit in any_repeats(parser.parse(regex))), default=0)


def test_healthy_lines_raise_no_alarm() -> None:
    """What MindSpore, CANN, NCCL, the kernel and scripts print when all is well matches no row of a failure."""
    assert [line for line in HEALTHY if raises_alarm(line)] == []


def test_no_row_matches_below_the_level_of_its_example() -> None:
    """The words of an error in a [DEBUG] or [INFO] line raise no alarm."""
    wrong = []
    for pattern in PATTERNS:
        words = re.sub(r"^\[\w+\] ?", "", pattern.example)
        for level in ("[DEBUG] ", "[INFO] "):
            if raises_alarm(f"{level}ME(1,7f,python3):2026-11-17-13:32:31.745.623 [a.cc:1] {words}"):
                wrong.append((pattern.id, level))
    assert wrong == []


def test_every_row_has_literals_for_a_quick_test() -> None:
    """A row is tried only on lines that hold one of its literals, each of at least four characters."""
    wrong = []
    for pattern in PATTERNS:
        literals = required_literals(pattern.regex)
        if not literals or min(len(literal) for literal in literals) < 4:
            wrong.append(pattern.id)
    assert wrong == []


def test_no_row_reads_a_line_of_any_length_again_and_again() -> None:
    """`.*` behind words that a hostile line repeats takes time by the square of its length, so repeats are bounded."""
    assert [pattern.id for pattern in PATTERNS if longest_repeat(pattern.regex) > 400] == []


def test_forms_of_lines_have_bounded_repeats() -> None:
    """A line of a megabyte that begins a form a thousand times must not take seconds."""
    assert [form.regex.pattern for form in forms() if longest_repeat(form.regex.pattern) > 600] == []


def test_a_line_with_nothing_but_a_code_is_explained() -> None:
    """A row that lists a code matches a line that holds the code alone."""
    wrong = []
    for code in CODES:
        match = match_line(printed(code))
        if match is None or code not in match.pattern.codes:
            wrong.append(code)
    assert wrong == []


def test_advice_is_the_same_for_every_line() -> None:
    """Values of a line are filled into the summary only, so advice has no place for them."""
    assert [pattern.id for pattern in PATTERNS if re.search(r"\{\d\}", pattern.advice)] == []


def test_a_row_lists_the_codes_of_its_regex() -> None:
    """`--explain` finds a row by every code that its regex matches."""
    wrong = []
    for pattern in PATTERNS:
        if not set(CANN_CODE.findall(pattern.regex.replace(r"\b", " "))) <= set(pattern.codes):
            wrong.append(pattern.id)
    assert wrong == []


def test_rows_whose_example_was_put_together_say_so() -> None:
    """An example is a line as somebody's program printed it, or its source tells that it is not."""
    rows = {pattern.id: pattern for pattern in PATTERNS}
    assert all("put together" in rows[name].source for name in PUT_TOGETHER)


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("HcclCommInitRootInfo failed, return[0x0000000005000004], rankNum[8], rank[4]", "hccl-init-failed"),
        ("HcclCommInitRootInfo failed, return[0x0000000005000009], rankNum[8], rank[4]", "hccl-init-failed"),
        ("RuntimeError: HcclCommInitRootInfoConfig failed, hcclRet: 9", "hccl-init-failed"),
        ("HcclCommInitRootInfo failed, return[0x0000000005000003], rankNum[8], rank[4]", "hccl-init-memory"),
        ('Ascend collective Error: "HcclCommInitRootInfo failed. | Error Number 2', "hccl-init-memory"),
        ("kernel: [16794.247] Out of memory: Kill process 6033 (python) score 367 or sacrifice child", "out-of-memory"),
        ("Out of memory: Killed process 4242 (python) total-vm:33554432kB", "out-of-memory"),
        ("Memory cgroup out of memory: Kill process 77 (python) score 1000 or sacrifice child", "memory-cgroup"),
        ("Malloc device memory failed, ret[207001], may be other processes occupying this card", "device-occupied"),
        ("  |  124.0.0.11(1)   |   124.0.0.21(0)   |  server  | no connect |", "hccl-link-table"),
        ("EI0016: tlsStatus are inconsistent between rank 0 and rank 8", "hccl-tls"),
        ("NCCL WARN Connect to XXX failed: Network is unreachable", "nccl-connect"),
    ],
)
def test_lines_that_rows_share_words_with(line: str, pattern: str) -> None:
    """The row that says most about a line is the one that is found."""
    found = match_line(line)
    assert found is not None
    assert found.pattern.id == pattern


@pytest.mark.parametrize(
    ("line", "blamed"),
    [
        ("x |  192.168.100.212(10)   |  16666  |   192.168.100.202(2)   |  28826  |  server  | time out |", "10"),
        ("connected p2p timeout, timeout:130 s. local logicDevid:0, remote physic id:1.", "1"),
        ("cqe err status[12], time:[2023-07-04 22:15:59.099518], ip:[192.1.95.102]", "192.1.95.102"),
        (
            "cqe error status[12], time:[2025-09-15 08:38:12],localInfo{server[127.10.0.1],deviceIp[127.11.0.1]}, "
            "remoteIP{server[127.10.0.2],deviceId[127.10.0.2],deviceIp[127.11.0.2]}",
            "127.11.0.2",
        ),
        ("TopoExchangeAgent: connect server[51.38.67.143%enp189s0f0 : 60004] failed", "51.38.67.143"),
        ("SDMA memory copy task exception occurred (EI0012), Remote rank: [4800]. B", "4800"),
        ("NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe", "10.200.84.247<58355>"),
    ],
)
def test_a_row_names_the_peer_that_is_waited_for(line: str, blamed: str) -> None:
    """The graph of waiting is built of these."""
    found = match_line(line)
    assert found is not None
    assert found.blamed == blamed


@pytest.mark.parametrize(
    ("codes", "trouble"),
    [("EI0001", "a list of texts is wanted, got 'EI0001'"), ("[1]", "a list of texts is wanted, got [1]")],
)
def test_codes_of_added_rows_are_checked(codes: str, trouble: str) -> None:
    """A row of a user with codes of another form is named, with what is wanted."""
    row = f"- {{id: a, kind: cause, regex: quota, summary: s., advice: a, codes: {codes}}}\n"
    patterns, problems = parse_rows(row, "site.yaml", "patterns", checked_pattern)
    assert patterns == []
    assert problems == [f"site.yaml:1: row 1 (a) does not count: codes: {trouble}"]


def test_an_added_row_without_an_example_counts_on_every_level(bench: Bench) -> None:
    """Only an example tells of which level a row is."""
    bench.write(
        "config/mslaunch/patterns.d/site.yaml",
        "- {id: site-quota, kind: cause, regex: the quota of, summary: s., advice: a, codes: [Q1]}\n",
    )
    bench.write("logs/worker_0.log", "[INFO] the quota of anna is used up\n")
    done = bench.mslaunch("diagnose", "logs", "--json", XDG_CONFIG_HOME=str(bench.folder / "config"))
    assert json.loads(done.stdout)["pattern"] == "site-quota"


def test_a_near_miss_names_the_failures_that_may_be_meant() -> None:
    """A code without its zeros, words of an example, a typo; what resembles nothing gets the list alone."""
    near = {
        "nosuch": "'nosuch' is not a known failure. `mslaunch",
        "fused-sparse-deprecatd": "; the nearest is fused-sparse-deprecated (MindSpore's optimizers use",
        "EI006": "; the nearest are EI0006 (hccl-connect-timeout: A peer did not connect in time), ",
        "Errno 28": "; the nearest are disk-full (A disk is full), ",
        "GPU driver too old": "; the nearest is cuda-driver-old (",
    }
    for name, words in near.items():
        with pytest.raises(RequestError, match=re.escape(words)):
            explain.show(name, None, False)


def test_a_name_with_blanks_and_a_line_of_a_log_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """As they are typed or pasted."""
    for name, row in {
        "out of memory": "out-of-memory (",
        "RuntimeError: EI0006: Getting socket times out.": "hccl-connect-timeout (",
    }.items():
        explain.show(name, None, False)
        assert capsys.readouterr().out.startswith(row)
