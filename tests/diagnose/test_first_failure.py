"""Which failure is the first one: what came at the same moment, and what a log says near its end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mslaunch.cli.console.describe import describe_verdict
from mslaunch.diagnose.case import Case
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import scan
from mslaunch.diagnose.verdict import Tie, Verdict
from mslaunch.diagnose.waiting.writer import Identity
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.explain import make_verdict
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import record_of_logs
from tests.conftest import Bench
from tests.launcher.test_run_state import error, exited, tell
from tests.plan.test_make import plan_of, spec_of

VICTIM = "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.\n"
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "ValueError: loss is NaN"]


def verdict_of(folder: Path, *events: dict[str, Any]) -> Verdict:
    """The verdict on a job of two ranks whose rank 0 wrote that it waited for rank 1."""
    log = folder / "rank_0" / "log.txt"
    log.parent.mkdir()
    log.write_text(VICTIM)
    run_state = RunState(plan_of(spec_of(workers=2), run_dir=str(folder)))
    tell(run_state, *events)
    verdict = make_verdict(run_state, RunFolder(folder))
    assert verdict is not None
    return verdict


def test_a_cause_that_is_reported_within_a_second_of_its_victim_is_the_verdict(tmp_path: Path) -> None:
    """A rank that failed of waiting may be reported before the rank that it waited for."""
    verdict = verdict_of(tmp_path, exited(0, 10.0, 1), error(1, 10.9, "KeyError: 'x'"), exited(1, 11.5, 1))
    assert (verdict.rank, verdict.summary) == (1, "KeyError: 'x'")


def test_what_fails_more_than_a_second_later_is_a_consequence(tmp_path: Path) -> None:
    """By then the job is being stopped, and what a rank raises may come from that."""
    verdict = verdict_of(tmp_path, exited(0, 10.0, 1), error(1, 11.1, "KeyError: 'x'"), exited(1, 11.5, 1))
    assert (verdict.rank, verdict.pattern) == (0, "hccl-connect-timeout")


@pytest.mark.parametrize(("lines", "summary"), [(20, "ValueError: loss is NaN"), (21, "exited with code 1")])
def test_an_exception_may_be_followed_by_twenty_lines(lines: int, summary: str) -> None:
    """MindSpore still writes when a script has failed; what stands further up was handled by the script."""
    findings = scan([*TRACEBACK, *["[WARNING] taken apart"] * lines])
    verdict = judge(
        [Case("0", 0, failed_at=1.0, exit_code=1, findings=findings, cause="exit", summary="exited with code 1")]
    )
    assert verdict is not None
    assert verdict.summary == summary
    assert bool(verdict.traceback) == (lines == 20)


MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
HANDLED = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', MEMORY]
RUNTIME = "[ERROR] HCCP(7,python):2026-03-01-08:00:00.000.000 EJ0002: the NPU network port is down."
FULL = [
    "Process Process-1:",
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in load',
    "OSError: [Errno 28] No space left on device",
]
WORK = [f"batch {number}" for number in range(30)]


def raising(message: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', message]


@pytest.mark.parametrize(
    ("lines", "cause", "message", "pattern"),
    [
        ([MEMORY, *WORK], "exit", "exited with code 3", None),
        ([*WORK, MEMORY, "cannot go on"], "exit", "exited with code 3", "cuda-memory"),
        ([*HANDLED, *WORK], "signal", "was killed by SIGKILL", None),
        ([*HANDLED, "half the batch", *raising("KeyError: 'x'")], "exception", "KeyError: 'x'", None),
        ([*HANDLED, "half the batch", *raising("RuntimeError: bad")], "exception", "RuntimeError: bad", None),
        ([MEMORY, *raising("RuntimeError: bad")], "exception", "RuntimeError: bad", None),
        ([*WORK, *raising(MEMORY)], "exception", MEMORY, "cuda-memory"),
        ([*raising("RuntimeError: bad"), "below", MEMORY], "exception", "RuntimeError: bad", "cuda-memory"),
        ([RUNTIME, *WORK, *raising("RuntimeError: bad")], "exception", "RuntimeError: bad", "npu-port-down"),
        ([RUNTIME, *raising("KeyError: 'x'")], "exception", "KeyError: 'x'", None),
        ([*FULL, *raising("RuntimeError: a loader died")], "exception", "RuntimeError: a loader died", "disk-full"),
        ([*FULL, *WORK, *raising("RuntimeError: bad")], "exception", "RuntimeError: bad", None),
        ([*HANDLED, *WORK], "exception", "ValueError: nobody printed it", None),
    ],
)
def test_only_what_may_explain_the_end_of_a_rank_gives_advice(
    lines: list[str], cause: str, message: str, pattern: str | None
) -> None:
    """Not a printed line or a handled exception far above it; a library's error and that of a child may."""
    error = {"message": message, "type": message.partition(":")[0]} if cause == "exception" else None
    case = Case("", 0, failed_at=1.0, exit_code=1, findings=scan(lines), cause=cause, summary=message, error=error)
    verdict = judge([case])
    assert verdict is not None
    assert (verdict.summary, verdict.pattern) == (message, pattern)
    assert "batch" not in str(verdict.traceback)
    assert pattern == "cuda-memory" or MEMORY not in f"{verdict.traceback} {verdict.advice}"


def test_a_handled_error_does_not_make_a_waiting_rank_the_culprit() -> None:
    """Long ago it could not reach a server; now it waits for rank 1, which failed."""
    waits = "RuntimeError: EI0002: no Notify record from remote rank: [1]."
    old = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in get',
        "ConnectionError: no such host",
        *WORK,
    ]
    log = scan([*old, *raising(waits)])
    error = {"message": waits, "type": "RuntimeError"}
    first = Case("0", 0, failed_at=1.0, exit_code=1, findings=log, cause="exception", summary=waits, error=error)
    second = Case("1", 1, failed_at=1.5, exit_code=1, cause="exception", summary="KeyError: 'x'")
    verdict = judge([replace(first, who=Identity(0)), replace(second, who=Identity(1))])
    assert verdict is not None
    assert verdict.rank == 1


def test_ranks_that_failed_by_themselves_are_told_from_those_that_were_stopped(tmp_path: Path) -> None:
    """Two ranks raise, one exits before it was asked to, and one is ended: the last one is a victim."""
    run_state = RunState(plan_of(spec_of(workers=4), run_dir=str(tmp_path)))
    tell(run_state, error(2, 10.0, "KeyError: 'x'"), error(0, 12.0, "KeyError: 'y'"))
    tell(run_state, {**exited(1, 12.1, 3), "asked": False}, {**exited(3, 12.2, None, 15), "asked": True})
    tell(run_state, exited(0, 12.3, 1), exited(2, 12.3, 1))
    verdict = make_verdict(run_state, RunFolder(tmp_path))
    assert verdict is not None
    assert (verdict.rank, verdict.also_failed, verdict.victims) == (2, (0, 1), (3,))
    assert [record.state for record in run_state.ranks.records.values()] == ["failed", "failed", "failed", "stopped"]


def test_line_numbers_of_a_long_log_are_those_of_the_whole_file(tmp_path: Path) -> None:
    """The verdict reads the end of a log only."""
    log = tmp_path / "rank_0" / "log.txt"
    log.parent.mkdir()
    log.write_text("epoch: 1 step: 1, loss is 1.0\n" * 100_000 + "\n".join(TRACEBACK) + "\n")
    run_state = RunState(plan_of(spec_of(workers=2), run_dir=str(tmp_path)))
    tell(run_state, exited(0, 10.0, 1))
    verdict = make_verdict(run_state, RunFolder(tmp_path))
    assert verdict is not None
    assert (verdict.line, verdict.summary) == (100_001, "ValueError: loss is NaN")


def test_no_log_is_read_of_ranks_that_failed_after_a_cause(tmp_path: Path) -> None:
    """A thousand ranks that fail together cost one log."""
    run_state = RunState(plan_of(spec_of(workers=3), run_dir=str(tmp_path)))
    for rank in range(3):
        (tmp_path / f"rank_{rank}").mkdir()
    (tmp_path / "rank_0" / "log.txt").write_text("\n".join(TRACEBACK))
    for rank in (1, 2):
        os.mkfifo(tmp_path / f"rank_{rank}" / "log.txt")  # reading it would wait for ever
    tell(run_state, *(error(rank, 10.0 + rank / 10, "ValueError: loss is NaN") for rank in range(3)))
    verdict = make_verdict(run_state, RunFolder(tmp_path))
    assert verdict is not None
    assert (verdict.rank, verdict.also_failed) == (0, (1, 2))


@pytest.mark.parametrize(
    ("apart", "host", "clock_error", "is_tied"),
    [
        (0.001, "localhost", 0.0, True),
        (0.03, "localhost", 0.5, False),
        (0.03, "n2", 0.0, False),
        (0.15, "n2", 0.1, True),
        (0.25, "n2", 0.1, False),
    ],
)
def test_ranks_that_fail_closer_than_the_clocks_can_tell_are_all_named(
    tmp_path: Path, apart: float, host: str, clock_error: float, is_tied: bool
) -> None:
    """On one host a busy core may delay the time stamp; between hosts the clocks themselves are not known exactly."""
    errors = {"localhost": clock_error, "n2": clock_error}
    run_state = RunState(plan_of(spec_of(workers=3), run_dir=str(tmp_path)), clock_errors=errors)
    run_state.ranks.records[2] = replace(run_state.ranks.records[2], host=host)
    tell(run_state, error(2, 10.0 + apart, "KeyError: 'y'"), error(0, 10.0, "KeyError: 'x'"))
    tell(run_state, exited(0, 12.0, 1), exited(2, 12.0, 1), {**exited(1, 12.1, None, 15), "asked": True})
    verdict = make_verdict(run_state, RunFolder(tmp_path))
    assert verdict is not None
    assert (verdict.rank, verdict.also_failed, verdict.victims) == (0, (2,), (1,))
    assert verdict.ties == ((Tie((2,), "KeyError: 'y'"),) if is_tied else ())


def test_a_tie_is_printed_with_its_own_words() -> None:
    """Ranks that failed with the same words share a line."""
    ties = (Tie((1, 2), "KeyError: 'x'"), Tie((3,), "ValueError: y"))
    verdict = Verdict(0, "n1", 1, None, "exception", "KeyError: 'x'", ties=ties, also_failed=(1, 2, 3, 4))
    lines = describe_verdict(record_of_logs("r", verdict))
    assert lines[2:4] == [
        "or ranks 1-2, too close in time to tell: the same error",
        "or rank 3, too close in time to tell: ValueError: y",
    ]
    assert "failed too: rank 4" in lines


def test_a_rank_that_is_stopped_while_it_reports_its_exception_is_not_a_victim(bench: Bench) -> None:
    """It raised by itself, first of all; only its report took longer than that of another rank."""
    bench.write(
        "train.py",
        "import os, pathlib, time\n"
        "raised = pathlib.Path(os.environ['MSLAUNCH_RUN_DIR'], 'raised')\n"
        "class Slow(Exception):\n"
        "    def __str__(self):\n"
        "        raised.touch()\n"
        "        time.sleep(0.5)\n"
        "        return 'slow to report'\n"
        "if os.environ['RANK_ID'] == '1':\n"
        "    raise Slow\n"
        "while not raised.exists():\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "raise KeyError('x')\n",
    )
    bench.mslaunch("train", "-n", "2")
    verdict = bench.record()["verdict"]
    assert (verdict["rank"], verdict["summary"]) == (1, "Slow: slow to report")
    assert (verdict["also_failed"], verdict["victims"]) == ([0], [])
