"""The verdict: who failed first, of what, and who only suffered. Pure: from what is known of each rank."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mslaunch.diagnose.scan import SUMMARY_LIMIT, TRACEBACK_LIMIT, Findings, Hit, Raised
from mslaunch.diagnose.verdict import Verdict, signal_name
from mslaunch.words import cut_middle

# Every rank's server listens in a range of its own: 256 ports from 8118 on, by rank.
_FIRST_PORT = 8118
_PORTS_EACH = 256
NEAR_THE_END = 20  # lines that MindSpore may still write after an exception


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about one rank, or about a log whose rank is not known."""

    log: str
    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    failed_at: float | None = None
    """When it failed by itself; None where it did not, was stopped, or nobody knows."""
    error: dict[str, Any] | None = None
    """What its error.json holds."""
    findings: Findings = field(default_factory=Findings)
    out_of_memory: bool = False
    child: str | None = None
    """A process of the rank that was killed before it, and by which signal."""
    child_signal: int | None = None
    scheduler: bool = False
    cause: str | None = None
    """What the launcher knows about how it failed: exception, exit, signal, stalled and so on."""
    summary: str | None = None
    ended_by_itself: bool = False
    """The launcher saw it fail before anybody asked it to end."""

    @property
    def name(self) -> str:
        return "the scheduler" if self.scheduler else self.log if self.rank is None else f"rank {self.rank}"


def judge(cases: Sequence[Case]) -> Verdict | None:
    """Name the first failure; None where there is no sign of one."""
    failed = sorted((case for case in cases if _failed(case)), key=_when)
    causes = [case for case in failed if not _is_victim(case)]
    ranks_first = [case for case in causes if is_cause(case)] or causes
    first = next(iter(ranks_first), None) or _vanished(cases) or next(iter(failed), None)
    if first is None:
        return None
    return _verdict(first, [case for case in cases if case.rank != first.rank])


def is_cause(case: Case) -> bool:
    """Tell whether a case that failed is a reason by itself: nothing that failed later is the first failure then."""
    return not case.scheduler and not _is_victim(case)


def _failed(case: Case) -> bool:
    return case.failed_at is not None or bool(case.error or case.findings.raised or _first_hit(case))


def _when(case: Case) -> float:
    if case.failed_at is not None:
        return case.failed_at
    times = [raised.time for raised in case.findings.raised] + [hit.time for hit in case.findings.hits]
    return min((time for time in times if time is not None), default=float("inf"))


def _first_hit(case: Case) -> Hit | None:
    """Return the telling pattern of a log: the first cause, else the first victim."""
    told = [hit for hit in case.findings.hits if hit.match.pattern.kind != "healthy"]
    causes = [hit for hit in told if hit.match.pattern.kind == "cause"]
    return next(iter(causes or told), None)


def _is_victim(case: Case) -> bool:
    """A case whose own words are only about others: time-outs, lost heartbeats, sockets that nobody answered."""
    hit = _first_hit(case)
    if case.cause not in (None, "exception", "exit") or hit is None or hit.match.pattern.kind != "victim":
        return False
    return all(_speaks_of(raised, case) for raised in case.findings.raised)


def _speaks_of(raised: Raised, case: Case) -> bool:
    """Tell whether an exception is itself the victim's message, not an error beside it."""
    return any(
        raised.line <= hit.line <= raised.end + 1 and hit.match.pattern.kind == "victim" for hit in case.findings.hits
    )


def _vanished(cases: Sequence[Case]) -> Case | None:
    """Find a rank that ended without a word: its peers saw the connection break, or went on while it did not."""
    ranks = {case.rank: case for case in cases if case.rank is not None and not _end_is_known(case)}
    for case in ranks.values():
        for port in case.findings.gone_ports:
            peer = ranks.get((port - _FIRST_PORT) // _PORTS_EACH)
            if peer is not None and peer is not case and not _failed(peer):
                return _killed(peer)
    steps = {case.findings.last_step for case in ranks.values()}
    suffered = any(_failed(case) for case in cases)
    if suffered and len(steps) > 1:
        behind = min(ranks.values(), key=lambda case: case.findings.last_step)
        return None if _failed(behind) else _killed(behind)
    return None


def _end_is_known(case: Case) -> bool:
    return case.exit_code is not None or case.signal is not None


def _killed(case: Case) -> Case:
    summary = "ended without a word: killed from outside, most likely (SIGKILL, for example for lack of memory)"
    return replace(case, cause="vanished", summary=summary)


def _verdict(first: Case, others: Sequence[Case]) -> Verdict:
    hit = _first_hit(first)
    raised = _last_words(first)
    error = first.error or {}
    summary, advice, pattern = _words(first, hit, raised)
    ended = [case for case in others if case.rank is not None and case.exit_code != 0]
    also_failed = _ranks([case for case in ended if case.ended_by_itself or (_failed(case) and is_cause(case))])
    return Verdict(
        rank=first.rank,
        host=first.host,
        exit_code=first.exit_code,
        signal=first.signal,
        cause=_cause(first) or ("exception" if raised or error else "pattern" if hit else "unknown"),
        summary=cut_middle(summary, SUMMARY_LIMIT),
        advice=advice and cut_middle(advice, SUMMARY_LIMIT),
        log=first.log,
        line=raised.line if raised else hit.line if hit else first.findings.lines or None,
        traceback=cut_middle(error.get("traceback") or (raised.traceback if raised else ""), TRACEBACK_LIMIT) or None,
        pattern=pattern,
        also_failed=also_failed,
        victims=tuple(rank for rank in _ranks(ended) if rank not in also_failed),
        step=first.findings.last_step if any(first.findings.last_step) else None,
    )


def _ranks(cases: Sequence[Case]) -> tuple[int, ...]:
    return tuple(sorted({case.rank for case in cases if case.rank is not None}))


def _cause(case: Case) -> str | None:
    """Return how a case failed; a text that was given to sys.exit() comes as an exception and is an exit."""
    exited = (case.error or {}).get("type") == "SystemExit" and case.cause in (None, "exception")
    return "exit" if exited else case.cause


def _last_words(case: Case) -> Raised | None:
    """Return the exception that a case ended with; one that stands far above the end of its log was dealt with."""
    last = case.findings.raised[-1] if case.findings.raised else None
    cause = _cause(case)
    if last is None or cause in (None, "exception", "signal", "scheduler", "script"):
        return last
    return last if cause == "exit" and case.findings.lines - last.end <= NEAR_THE_END else None


def _words(case: Case, hit: Hit | None, raised: Raised | None) -> tuple[str, str | None, str | None]:
    """Return summary, advice and pattern id."""
    if case.out_of_memory:
        who = f"its child process {case.child} was " if case.child else ""
        return (
            f"{who}killed by the kernel: out of memory",
            "Use fewer workers or data-loading processes per host, or a host with more memory.",
            "out-of-memory",
        )
    message = (case.error or {}).get("message") or (raised.summary if raised else None) or case.summary
    if case.signal and (raised is None or not raised.summary.startswith("Fatal")):
        message = case.summary or f"killed by {signal_name(case.signal)}"
    if case.child and case.cause in ("signal", "exit"):
        by = signal_name(case.child_signal or 0)
        message = f"{message}, after its child process {case.child} was killed by {by}"
    elif case.signal == signals.SIGTERM and hit is not None and hit.match.pattern.kind == "cause":
        message = f"{hit.match.summary} The rank was then ended by SIGTERM."
    if hit is None:
        return message or "no reason was found", None, None
    known = hit.match
    if case.scheduler and known.pattern.kind == "cause":
        return known.summary, known.pattern.advice, known.pattern.id  # its own exception only lists what may be wrong
    return message or known.summary, f"{known.summary} {known.pattern.advice}", known.pattern.id
