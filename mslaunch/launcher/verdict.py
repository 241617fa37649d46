"""The verdict on an attempt: what the run state saw, together with what the logs tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mslaunch import layout
from mslaunch.diagnose.folder import read_error
from mslaunch.diagnose.judge import Case, Verdict, judge
from mslaunch.diagnose.scan import Findings, scan_file
from mslaunch.launcher.decisions import Failure
from mslaunch.launcher.run_state import RunState
from mslaunch.store.layout import RunFolder

# What fails within this time of the first failure may be the true cause, told late; what fails later is a consequence.
SAME_MOMENT = 1.0


def make_verdict(run_state: RunState, folder: RunFolder) -> Verdict | None:
    """Name the first failure of an attempt, with the words of its log."""
    if not run_state.failures:
        return None
    first = min(failure.time for failure in run_state.failures)
    cases: dict[int | None, Case] = {}
    for failure in sorted(run_state.failures, key=lambda failure: failure.time):
        if failure.rank not in cases and failure.time <= first + SAME_MOMENT:
            cases[failure.rank] = _case(failure, folder)
    for rank, record in run_state.ranks.items():
        if rank not in cases:
            cases[rank] = Case(str(folder.log(rank)), rank, record.host, record.exit_code, record.signal)
    verdict = judge(list(cases.values()))
    if verdict is not None and verdict.step is None:  # often only one rank prints steps
        step = _scan(str(folder.log(0))).last_step
        verdict = replace(verdict, step=step if any(step) else None)
    return verdict


def _case(failure: Failure, folder: RunFolder) -> Case:
    case = Case(
        log=failure.log or str(folder.path),
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        signal=failure.signal,
        failed_at=failure.time,
        error=None if failure.rank is None else read_error(folder.rank(failure.rank)),
        findings=_scan(failure.log),
        out_of_memory=failure.out_of_memory,
        scheduler=failure.cause == "scheduler",
        cause=failure.cause,
        summary=failure.summary,
    )
    return case if failure.rank is None else _with_plogs(case, folder.rank(failure.rank))


def _with_plogs(case: Case, rank_dir: Path) -> Case:
    """HCCL writes its error codes into CANN's own log, not into the rank's output."""
    hits = [hit for path in sorted(rank_dir.glob(f"{layout.PLOG}/**/*.log")) for hit in _scan(str(path)).hits]
    return replace(case, findings=replace(case.findings, hits=(*case.findings.hits, *hits))) if hits else case


def _scan(log: str | None) -> Findings:
    try:
        return scan_file(Path(log), limit=1 << 20) if log else Findings()
    except OSError:
        return Findings()
