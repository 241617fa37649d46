"""The verdict on an attempt, from what the run state saw and the logs tell; and where missing files are."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mslaunch.diagnose.case import Case, complaints, is_cause, read_error
from mslaunch.diagnose.judge import judge
from mslaunch.diagnose.logs.scan import Findings, lines_before_tail, scan, scan_head, scan_tail
from mslaunch.diagnose.verdict import Verdict
from mslaunch.diagnose.waiting.writer import identify
from mslaunch.errors import NotReadyError
from mslaunch.launcher.attempt.decisions import Failure
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.plan.model import Plan
from mslaunch.run.find import list_all
from mslaunch.run.paths import RunFolder, runs_root
from mslaunch.shared import layout

MOST_RUNS = 50
"""How many runs are looked into, the newest first."""
MOST_ENTRIES = 5000
_DEPTH = 4
_FILE = re.compile(r"No such file or directory: '([^'\n]+)'|([^\s'\",:]+)['\"]? does not exist")
_MODULE = re.compile(r"No module named '([\w.]+)'")


def point_to_missing(verdict: Verdict, plan: Plan, folder: RunFolder) -> Verdict:
    """Add to the advice where the file or module is that a rank did not find."""
    if verdict.cause != "exception":
        return verdict
    if match := _MODULE.search(verdict.summary):
        words = _module(match[1], plan)
    elif match := _FILE.search(verdict.summary):
        words = _file(match[1] or match[2], verdict.rank or 0, plan, folder)
    else:
        return verdict
    return replace(verdict, advice=" ".join(part for part in (words, verdict.advice) if part) or None)


def earlier_run_with(name: str, runs_dirs: Sequence[Path], but: RunFolder | None = None) -> str | None:
    """Say which run wrote a file or folder of this relative path, the newest one, and where it is."""
    runs: list[RunFolder] = []
    with suppress(NotReadyError):
        runs = list_all(runs_dirs)[: -MOST_RUNS - 1 : -1]
    for run in runs:
        if but is not None and run.path.resolve() == but.path.resolve():
            continue
        ranks = sorted(run.path.glob(f"{layout.RANK}*/{layout.WORK}"), key=lambda path: (len(str(path)), path))
        paths = [place / name for place in (*ranks, run.code) if (place / name).exists()]
        if paths:
            if len(paths) > 1 and paths[0].is_dir():
                return f"Run {run.name} wrote it on {len(paths)} ranks: {run.path}."
            return f"Run {run.name} wrote it: {paths[0]}."
    return None


def _file(name: str, rank: int, plan: Plan, folder: RunFolder) -> str | None:
    inside = _in_project(name, rank, plan, folder)
    if inside is None:
        return None
    path = Path(plan.job_dir, inside)
    if path.exists():
        return f"The project has it by now: {path}."
    earlier = earlier_run_with(inside, [runs_root(folder.path.parent)], folder)
    if earlier is not None:
        return earlier
    same = [one for one in _below(Path(plan.job_dir), folder) if one.name == path.name]
    return f"The project has a file of this name: {same[0]}." if len(same) == 1 else None


def _in_project(name: str, rank: int, plan: Plan, folder: RunFolder) -> str | None:
    """The path of a file from the project's root; None where it is meant to be elsewhere."""
    path = Path(folder.work(rank), plan.workdir, name)
    for root in (folder.work(rank), folder.code, Path(plan.job_dir)):
        inside = os.path.relpath(path, root)
        if inside.split("/")[0] != "..":
            return inside
    return None


def _module(name: str, plan: Plan) -> str | None:
    top = name.partition(".")[0]
    for path in _below(Path(plan.job_dir), RunFolder(Path(plan.run_dir))):
        place = path.parent.parent if path.name == "__init__.py" and path.parent.name == top else path.parent
        if path.name == f"{top}.py" or place != path.parent:
            return f"The project has it: {path}. Add its folder: --env PYTHONPATH={shlex.quote(str(place))}."
    return None


def _below(root: Path, run: RunFolder) -> Iterator[Path]:
    """The files of a project, those near its top first, without runs and what begins with a dot."""
    left = MOST_ENTRIES
    level = [root]
    for _ in range(_DEPTH):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            left -= len(entries)
            if left < 0:
                return
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and not run.path.is_relative_to(path):
                        below.append(path)
                elif entry.is_file():
                    yield path
        level = below


# What fails within this time of the first failure may be the true cause, told late; what fails later is a consequence.
SAME_MOMENT = 1.0
_HEAD = 1 << 16  # of a long log of CANN's
_ALL_TAILS, _SHORTEST_TAIL, _LONGEST_TAIL = 128 << 20, 1 << 16, 1 << 20


def make_verdict(run_state: RunState, folder: RunFolder) -> Verdict | None:
    """Name the first failure of an attempt, with the words of its log."""
    if not run_state.ending.failures:
        return None
    failures = _of_the_first_moment(run_state.ending.failures)
    # Of the end of each log so much is read that all of them together take less than a second.
    reader = _LogReader(folder, max(_SHORTEST_TAIL, min(_LONGEST_TAIL, _ALL_TAILS // len(failures))))
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
    for rank, record in run_state.ranks.records.items():
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
