"""Which failure is the first one: what came at the same moment, and what a log says near its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mslaunch.diagnose.judge import Case, Verdict, judge
from mslaunch.diagnose.scan import scan
from mslaunch.launcher.run_state import RunState
from mslaunch.launcher.verdict import make_verdict
from mslaunch.store.layout import RunFolder
from tests.plan.test_make import plan_of, spec_of
from tests.test_run_state import error, exited, tell

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
