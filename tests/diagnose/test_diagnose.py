"""The verdict from logs alone: the pattern table, msrun's log folders, plogs, and what cannot be read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.evidence import read_sources
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import lines_before_tail, scan, scan_tail
from mslaunch.diagnose.logs.sources import files_of
from mslaunch.diagnose.patterns.pattern import built_in_patterns, is_healthy_noise, match_line
from tests.conftest import Bench

LOGS = Path(__file__).parents[1] / "fixtures" / "msrun_logs"
PATTERNS = built_in_patterns()


def test_every_pattern_finds_its_example() -> None:
    """Each row matches its own line, has a summary, advice and a source, and no other row shadows it."""
    wrong = []
    for pattern in PATTERNS:
        match = match_line(pattern.example)
        is_right = match is not None and match.pattern.id == pattern.id and not re.search(r"\{\d\}", match.summary)
        has_text = pattern.summary.endswith(".") and pattern.advice and pattern.source
        if not is_right or not has_text or pattern.kind not in ("cause", "victim", "healthy"):
            wrong.append(pattern.id)
    assert wrong == []


def test_operators_word_an_index_out_of_range_in_their_own_ways() -> None:
    """One row explains them all."""
    for line in (
        "RuntimeError: For 'GatherD', the value of 'index' must be in [-3, 3), but got: 7",
        "RuntimeError: For 'Gather', the 'input_indices' should be in the range [0, 2), but got 9, error_code[58]",
    ):
        found = match_line(line)
        assert found is not None, line
        assert found.pattern.id == "index-range"


def test_pattern_ids_are_unique() -> None:
    """run.json names a pattern by its id."""
    assert len({pattern.id for pattern in PATTERNS}) == len(PATTERNS)


@pytest.mark.parametrize(
    ("folder", "rank", "words", "also_failed", "victims"),
    [
        ("raise", 1, "ValueError: loss is NaN at step 3", [], [0]),
        ("kill", 1, "ended without a word", [], [0]),
        ("early", 1, "FileNotFoundError: dataset/train.rec is missing", [], [0]),
        ("mismatch", 0, "device_num: 4 not equal to the real group_size: 2", [1], []),
    ],
)
def test_msruns_own_logs_give_the_true_cause(
    folder: str, rank: int, words: str, also_failed: list[int], victims: list[int]
) -> None:
    """Logs that msrun wrote, where its scheduler blames the rank that msrun itself had stopped."""
    verdict = judge(read_sources(files_of(LOGS / folder)).cases)
    assert verdict is not None
    assert verdict.rank == rank
    assert words in verdict.summary
    assert (verdict.also_failed, verdict.victims) == (tuple(also_failed), tuple(victims))
    assert str(verdict.log).endswith(f"worker_{rank}.log")


def test_what_a_script_prints_is_no_noise() -> None:
    """Only a line of MindSpore's own log is hidden from the screen, and only one that is known to be healthy."""
    noise = "Topology build timed out., retry(3/1200)."
    assert is_healthy_noise(f"[WARNING] DISTRIBUTED(1,7f,python) [cluster_context.cc:316] BuildCluster] {noise}")
    assert not is_healthy_noise(noise)
    assert not is_healthy_noise("[WARNING] ME(1,7f,python) [loss.py:1] the loss is NaN")


def test_a_healthy_log_is_no_failure() -> None:
    """Lines that every start writes never alarm."""
    healthy = (LOGS / "kill" / "worker_1.log").read_text().splitlines()
    assert judge([Case("worker_0.log", 0, findings=scan(healthy))]) is None


@pytest.mark.parametrize("name", ["scheduler-port-busy", "repeated-registration", "extra-node"])
def test_what_mindspore_prints_as_a_warning_counts_as_one(name: str) -> None:
    """The scheduler refuses a node or a port with a warning; rows that took it for an error would overlook it."""
    pattern = next(pattern for pattern in PATTERNS if pattern.id == name)
    found = match_line(pattern.example.replace("[ERROR]", "[WARNING]"))
    assert found is not None
    assert found.pattern.id == name


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Socket Timeout",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: Connection reset by peer",
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:40123",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
        "RuntimeError: NCCL communicator was aborted on rank 0.",
        "TimeoutError: [Errno 110] Connection timed out",
    ],
)
def test_a_broken_connection_is_not_the_cause_beside_another_exception(tmp_path: Path, message: str) -> None:
    """Logs without time stamps: the rank whose exception is about itself is named."""
    frame = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    run()\n'
    (tmp_path / "worker_0.log").write_text(f"{frame}{message}\n")
    (tmp_path / "worker_1.log").write_text(f"{frame}FileNotFoundError: data.rec\n")
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert (verdict.rank, verdict.victims) == (1, (0,))


@pytest.mark.parametrize(
    ("other", "victims"), [("epoch: 1 step: 3\n", False), ("RuntimeError: Connection reset by peer\n", True)]
)
def test_a_log_that_shows_nothing_is_not_of_a_victim(bench: Bench, other: str, victims: bool) -> None:
    """Processes that a loop of a shell has started do not end with each other."""
    frame = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    run()\n'
    bench.write("o/train_parallel0/train0.log", f"{frame if victims else ''}{other}")
    bench.write("o/train_parallel1/train1.log", f"{frame}ValueError: bad label\n")
    shown = bench.mslaunch("diagnose", "o").stdout
    assert "ValueError: bad label" in shown
    assert ("victims: rank 0" in shown) is victims


def test_a_victim_is_not_the_cause() -> None:
    """A time-out that came first does not hide the error of the rank that was waited for."""
    waiting = scan(["EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time."])
    broken = scan(["EJ0002: The environment is abnormal: the NPU network port is down."])
    cases = [Case("0", 0, failed_at=1.0, exit_code=1, findings=waiting, cause="exit")]
    cases += [Case("1", 1, failed_at=2.0, exit_code=1, findings=broken, cause="exit")]
    verdict = judge(cases)
    assert verdict is not None
    assert (verdict.rank, verdict.pattern) == (1, "npu-port-down")
    assert "hccn_tool" in str(verdict.advice)
    alone = judge(cases[:1])
    assert alone is not None
    assert (alone.rank, alone.pattern, alone.exit_code) == (0, "hccl-connect-timeout", 1)


def test_a_victim_alone_keeps_its_exit_code() -> None:
    """Ranks that were stopped are not taken for ones that vanished."""
    waiting = scan(["epoch: 1 step: 50, loss is 1", "EI0002: The wait execution of the Notify register times out."])
    first = Case("0", 0, failed_at=1.0, exit_code=1, findings=waiting, cause="exit")
    verdict = judge([first, Case("1", 1, signal=15)])
    assert verdict is not None
    assert (verdict.rank, verdict.exit_code) == (0, 1)


def test_an_exception_that_was_dealt_with_long_ago_is_not_the_reason() -> None:
    """What the launcher knows about the end comes first."""
    lines = ["Traceback (most recent call last):", '  File "x", line 1', "KeyError: 3", *["fine"] * 100]
    verdict = judge(
        [Case("0", 0, failed_at=1.0, exit_code=124, findings=scan(lines), cause="stalled", summary="no output")]
    )
    assert verdict is not None
    assert (verdict.summary, verdict.traceback) == ("no output", None)


@pytest.mark.parametrize("line", ["epoch: 1 step: 3, loss is 0.507033", "saved REI00041", "EI00061 samples"])
def test_numbers_that_look_like_codes_do_not_alarm(line: str) -> None:
    """A loss is not an error code."""
    assert match_line(line) is None


def test_an_exception_beside_a_time_out_is_a_cause() -> None:
    """A rank that says more than that it waited is not a victim only."""
    lines = [
        "EI0006: Getting socket times out.",
        "Traceback (most recent call last):",
        '  File "x", line 1',
        "KeyError: 3",
    ]
    first = Case("0", 0, failed_at=1.0, findings=scan(lines), cause="exception")
    second = replace(first, rank=1, failed_at=2.0)
    verdict = judge([second, first])
    assert verdict is not None
    assert verdict.rank == 0


def test_hccl_codes_are_found_in_plogs(tmp_path: Path) -> None:
    """CANN writes them into files of its own, below the rank's folder or named by pid."""
    log = tmp_path / "rank_3" / "log.txt"
    plog = tmp_path / "rank_3" / "plog" / "debug" / "plog" / "plog-4242_2026.log"
    plog.parent.mkdir(parents=True)
    log.write_text("epoch: 1 step: 1, loss is 1\n")
    plog.write_text("[ERROR] HCCP(4242,python):2026-11-16-02:04:06.293.000 EJ0004 [check][ip]fail\n")
    verdict = judge(read_sources(files_of(tmp_path)).cases)
    assert verdict is not None
    assert (verdict.rank, verdict.pattern) == (3, "device-ip")


def test_exceptions_are_read_whole() -> None:
    """Chains, syntax errors and fatal signals each count as one, with what belongs to them."""
    chained = [
        "noise",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 1",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "a.py", line 2, in g',
        "ValueError: two",
        "more noise",
    ]
    (raised,) = scan(chained).raised
    assert (raised.line, raised.summary) == (2, "ValueError: two")
    assert raised.traceback.splitlines() == chained[1:10]
    (syntax,) = scan(['  File "t.py", line 1', "    x = (", "        ^", "SyntaxError: '(' was never closed"]).raised
    assert syntax.summary.startswith("SyntaxError")
    (fatal,) = scan(
        ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):", '  File "t.py", line 3']
    ).raised
    assert fatal.summary == "Fatal Python error: Aborted"


def test_large_logs_are_read_at_their_end(tmp_path: Path) -> None:
    """Line numbers are those of the whole file."""
    path = tmp_path / "log.txt"
    path.write_text("x" * 99 + "\n" + "line\n" * 100000 + "Traceback (most recent call last):\nValueError: end\n")
    (raised,) = scan_tail(path, 4096, lines_before_tail(path, 4096)).raised
    assert (raised.line, raised.summary) == (100002, "ValueError: end")


def test_diagnose_on_the_command_line(bench: Bench) -> None:
    """A folder of msrun's, a run of ours, JSON, and folders without logs."""
    done = bench.mslaunch("diagnose", str(LOGS / "raise"))
    assert done.returncode == 0
    assert "First to fail: rank 1" in done.stdout
    assert json.loads(bench.mslaunch("diagnose", "--json", str(LOGS / "kill")).stdout)["rank"] == 1
    bench.write(
        "train.py", "import os\nif os.environ['RANK_ID'] == '2': raise KeyError('x')\nimport time; time.sleep(30)\n"
    )
    bench.mslaunch("train", "-n", "3")
    assert json.loads(bench.mslaunch("diagnose", "--json").stdout) == bench.record()["verdict"]
    (bench.folder / "empty").mkdir()
    empty = bench.mslaunch("diagnose", "empty")
    assert empty.returncode == 2
    assert "no logs here" in empty.stderr


@pytest.mark.parametrize(
    "content", [b"", b"\0\xff\xfe" * 1000, b"Traceback (most recent call last):", b'  File "\n' * 50]
)
def test_any_bytes_can_be_diagnosed(tmp_path: Path, content: bytes) -> None:
    """A broken log gives an answer or none, never a traceback."""
    (tmp_path / "worker_0.log").write_bytes(content)
    cases = read_sources(files_of(tmp_path)).cases
    assert len(cases) == 1
    judge(cases)


def test_a_name_that_is_nothing_is_said_to_be_so(bench: Bench) -> None:
    """In a folder without runs too, where it may have been meant as a folder of logs."""
    done = bench.mslaunch("diagnose", "nosuch")
    assert done.returncode == 2
    assert done.stderr.startswith("mslaunch: nosuch: no such folder, run or zip.")


def test_a_full_disk_is_known_by_what_the_rank_reported() -> None:
    """Its log had no room for the traceback."""
    full = "OSError: [Errno 28] No space left on device"
    verdict = judge([Case("0", 0, failed_at=1.0, exit_code=1, cause="exception", summary=full)])
    assert verdict is not None
    assert (verdict.summary, verdict.pattern, verdict.line) == (full, "disk-full", None)
    assert (verdict.advice or "").startswith("A disk is full. Look at df -h")
