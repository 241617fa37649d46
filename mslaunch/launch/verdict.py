"""The verdict on an attempt: what the story saw, together with what the logs tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mslaunch.diagnose.scan import Findings, scan_file
from mslaunch.diagnose.verdict import Case, judge
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.story import Failure, Story

# What fails within this time of the first failure may be the true cause, told late; what fails later is a consequence.
SAME_MOMENT = 1.0


def make_verdict(story: Story, folder: RunFolder) -> dict[str, Any] | None:
    """Name the first failure of an attempt, with the words of its log."""
    if not story.failures:
        return None
    first = min(failure.time for failure in story.failures)
    cases: dict[int | None, Case] = {}
    for failure in sorted(story.failures, key=lambda failure: failure.time):
        if failure.rank not in cases and failure.time <= first + SAME_MOMENT:
            cases[failure.rank] = _case(failure, folder)
    for rank, record in story.ranks.items():
        if rank not in cases:
            cases[rank] = Case(str(folder.log(rank)), rank, record.host, record.exit_code, record.signal)
    return judge(list(cases.values()))


def _case(failure: Failure, folder: RunFolder) -> Case:
    case = Case(
        log=failure.log or str(folder.path),
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        signal=failure.signal,
        failed_at=failure.time,
        error=read_error(folder, failure.rank),
        findings=_scan(failure.log),
        out_of_memory=failure.out_of_memory,
        scheduler=failure.cause == "scheduler",
        cause=failure.cause,
        summary=failure.summary,
    )
    return case if failure.rank is None else _with_plogs(case, folder.rank(failure.rank))


def _with_plogs(case: Case, rank_dir: Path) -> Case:
    """HCCL writes its error codes into CANN's own log, not into the rank's output."""
    hits = [hit for path in sorted(rank_dir.glob("plog/**/*.log")) for hit in _scan(str(path)).hits]
    return replace(case, findings=replace(case.findings, hits=(*case.findings.hits, *hits))) if hits else case


def read_error(folder: RunFolder, rank: int | None) -> dict[str, Any] | None:
    """Return what a rank's error.json holds; an exception of a mere thread is not why a rank ended."""
    if rank is None:
        return None
    try:
        error = json.loads(folder.error(rank).read_text())
    except (OSError, ValueError):
        return None
    return error if isinstance(error, dict) and error.get("thread") is None else None


def _scan(log: str | None) -> Findings:
    try:
        return scan_file(Path(log), limit=1 << 20) if log else Findings()
    except OSError:
        return Findings()
