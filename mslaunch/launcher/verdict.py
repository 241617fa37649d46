"""The verdict on an attempt: what the run state saw, together with what the logs tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mslaunch import layout
from mslaunch.diagnose.folder import read_error
from mslaunch.diagnose.judge import Case, is_cause, judge
from mslaunch.diagnose.scan import Findings, lines_before_tail, scan_tail
from mslaunch.diagnose.shapes import Shapes
from mslaunch.diagnose.verdict import Verdict
from mslaunch.launcher.decisions import Failure
from mslaunch.launcher.run_state import RunState
from mslaunch.store.layout import RunFolder

# What fails within this time of the first failure may be the true cause, told late; what fails later is a consequence.
SAME_MOMENT = 1.0
_ALL_TAILS, _SHORTEST_TAIL, _LONGEST_TAIL = 128 << 20, 1 << 16, 1 << 20


def make_verdict(run_state: RunState, folder: RunFolder) -> Verdict | None:
    """Name the first failure of an attempt, with the words of its log."""
    if not run_state.failures:
        return None
    failures = _of_the_first_moment(run_state.failures)
    reader = _LogReader(folder, _tail_size(len(failures)))
    cases: dict[int | None, Case] = {}
    decided = False
    for failure in failures:
        case = _case(failure, folder)
        if not decided:  # of those that failed after a cause no log is read: none of them can be the first
            case = reader.read(case)
            decided = is_cause(case)
        cases[failure.rank] = case
    for rank, record in run_state.ranks.items():
        if rank not in cases:
            failed = record.state == "failed"
            cases[rank] = Case(
                str(folder.log(rank)), rank, record.host, record.exit_code, record.signal, ended_by_itself=failed
            )
    verdict = judge(list(cases.values()))
    return None if verdict is None else _with_step(reader.number_line(verdict), reader, folder)


def _with_step(verdict: Verdict, reader: _LogReader, folder: RunFolder) -> Verdict:
    """Add the last step, where the first rank that failed printed none: often only rank 0 does."""
    if verdict.step is not None:
        return verdict
    step = reader.scan(folder.log(0)).last_step
    return replace(verdict, step=step if any(step) else None)


def _of_the_first_moment(failures: list[Failure]) -> list[Failure]:
    """Return what failed within a moment of the first failure, the first of each rank, in order of time."""
    first = min(failure.time for failure in failures)
    found: dict[int | None, Failure] = {}
    for failure in sorted(failures, key=lambda failure: failure.time):
        if failure.time <= first + SAME_MOMENT:
            found.setdefault(failure.rank, failure)
    return list(found.values())


def _tail_size(logs: int) -> int:
    """How much of the end of each log is read: all of them together in less than a second."""
    return max(_SHORTEST_TAIL, min(_LONGEST_TAIL, _ALL_TAILS // logs))


def _case(failure: Failure, folder: RunFolder) -> Case:
    return Case(
        log=failure.log or str(folder.path),
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        signal=failure.signal,
        failed_at=failure.time,
        out_of_memory=failure.out_of_memory,
        child=failure.child,
        child_signal=failure.child_signal,
        scheduler=failure.cause == "scheduler",
        cause=failure.cause,
        summary=failure.summary,
        ended_by_itself=True,
    )


class _LogReader:
    """Reads the ends of the logs of one attempt."""

    def __init__(self, folder: RunFolder, tail: int) -> None:
        self._folder = folder
        self._tail = tail
        self._shapes = Shapes()

    def read(self, case: Case) -> Case:
        """Add what a case's log and error.json tell."""
        case = replace(case, findings=self.scan(Path(case.log)))
        if case.rank is None:
            return case
        rank_dir = self._folder.rank(case.rank)
        # HCCL writes its error codes into CANN's own log, not into the rank's output.
        hits = [hit for path in sorted(rank_dir.glob(f"{layout.PLOG}/**/*.log")) for hit in self.scan(path).hits]
        findings = replace(case.findings, hits=(*case.findings.hits, *hits))
        return replace(case, findings=findings, error=read_error(rank_dir))

    def number_line(self, verdict: Verdict) -> Verdict:
        """Count the verdict's line from the start of its log: that is not done for logs that tell nothing."""
        if verdict.line is None or verdict.log is None:
            return verdict
        try:
            return replace(verdict, line=verdict.line + lines_before_tail(Path(verdict.log), self._tail))
        except OSError:
            return verdict

    def scan(self, log: Path) -> Findings:
        try:
            return scan_tail(log, self._tail, shapes=self._shapes)
        except OSError:
            return Findings()
