"""The verdict on an attempt: what the run state saw, together with what the logs tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mslaunch.diagnose.case import Case, complaints, is_cause, read_error
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import Findings, lines_before_tail, scan, scan_head, scan_tail
from mslaunch.diagnose.verdict import Verdict
from mslaunch.diagnose.waiting.writer import identify
from mslaunch.launcher.attempt.decisions import Failure
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.missing_files import point_to_missing
from mslaunch.run.paths import RunFolder
from mslaunch.shared import layout

# What fails within this time of the first failure may be the true cause, told late; what fails later is a consequence.
SAME_MOMENT = 1.0
_HEAD = 1 << 16  # of a long log of CANN's
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
        case = _case(failure, folder, run_state.clock_errors)
        if not decided:  # of those that failed after a cause no log is read: their own words are enough
            case = reader.read(case)
            decided = is_cause(case)
        else:
            case = replace(case, findings=scan(failure.summary.splitlines()))
        cases[failure.rank] = case
    # Where all of them only complain of peers, the one that they wait for may be a rank that has not failed.
    is_waiting = not decided and any(complaints(case) for case in cases.values())
    for rank, record in run_state.ranks.items():
        if rank not in cases:
            failed = record.state == "failed"
            ended = (record.exit_code, record.signal)
            case = Case(str(folder.log(rank)), rank, record.host, record.device_id, *ended, ended_by_itself=failed)
            cases[rank] = reader.read_plogs(case) if is_waiting else case
    verdict = judge(list(cases.values()))
    if verdict is None:
        return None
    return point_to_missing(_with_step(reader.number_lines(verdict), reader, folder), run_state.plan, folder)


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


def _case(failure: Failure, folder: RunFolder, clock_errors: Mapping[str, float]) -> Case:
    return Case(
        log=failure.log or str(folder.path),
        rank=failure.rank,
        host=failure.host,
        exit_code=failure.exit_code,
        signal=failure.signal,
        failed_at=failure.time,
        clock_error=clock_errors.get(failure.host, 0.0),
        out_of_memory=failure.out_of_memory,
        child=failure.child,
        child_signal=failure.child_signal,
        kernel=failure.kernel,
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
        self._numbered: set[str] = set()

    def read(self, case: Case) -> Case:
        """Add what a case's log, CANN's logs and error.json tell."""
        case = replace(case, findings=self.scan(Path(case.log)))
        if case.rank is None:
            return case
        return replace(self.read_plogs(case), error=read_error(self._folder.rank(case.rank)))

    def read_plogs(self, case: Case) -> Case:
        """Add what CANN's own logs tell: HCCL writes its errors there, and who each rank is, not into the output."""
        if case.rank is None:
            return case
        found = [case.findings]
        for path in sorted(self._folder.rank(case.rank).glob(f"{layout.PLOG}/**/*.log")):
            found += self._scan_plog(path)
        hits = tuple(hit for one in found for hit in one.hits)
        facts = tuple(fact for one in found for fact in one.facts)
        who = replace(identify((), facts), rank=case.rank)
        return replace(case, findings=replace(case.findings, hits=hits, facts=facts), who=who)

    def _scan_plog(self, path: Path) -> list[Findings]:
        """Scan the end of one of CANN's logs, and of a long one the start as well, where a rank says who it is."""
        self._numbered.add(str(path))
        try:
            before = lines_before_tail(path, self._tail)
            end = scan_tail(path, self._tail, before)
            return [scan_head(path, min(_HEAD, path.stat().st_size - self._tail)), end] if before else [end]
        except OSError:
            return []

    def number_lines(self, verdict: Verdict) -> Verdict:
        """Count lines from the start of their logs: that is not done for logs that tell nothing."""
        chain = tuple(replace(step, line=self._number(step.log, step.line)) for step in verdict.chain)
        return replace(verdict, line=self._number(verdict.log, verdict.line), chain=chain)

    def _number(self, log: str | None, line: int | None) -> int | None:
        if line is None or log is None or log in self._numbered:
            return line
        try:
            return line + lines_before_tail(Path(log), self._tail)
        except OSError:
            return line

    def scan(self, log: Path) -> Findings:
        try:
            return scan_tail(log, self._tail)
        except OSError:
            return Findings()
