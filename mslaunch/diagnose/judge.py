"""The verdict: who failed first, of what, and who only suffered. Pure: from what is known of each rank."""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from dataclasses import replace

from mslaunch.diagnose.case import (
    Case,
    failed,
    first_hit,
    how_it_failed,
    is_cause,
    is_tie,
    is_victim,
    last_exception,
    printed_step,
    when,
)
from mslaunch.diagnose.logs.scan import SUMMARY_LIMIT, TRACEBACK_LIMIT, Hit, Raised, scan
from mslaunch.diagnose.logs.sources import is_kernel_log
from mslaunch.diagnose.verdict import Tie, Verdict, signal_name
from mslaunch.diagnose.waiting.chain import Chain, steps_of
from mslaunch.diagnose.waiting.collective import (
    chains_of,
    contradiction,
    of_chain,
    of_group,
    of_whole_group,
    with_tls,
)
from mslaunch.diagnose.waiting.graph import DeviceAddress
from mslaunch.shared.headlines import with_headline
from mslaunch.text import cut_middle

# Every rank's server listens in a range of its own: 256 ports from 8118 on, by rank.
_FIRST_PORT = 8118
_PORTS_EACH = 256
_MOST_BESIDE = 5
_MOST_TIES = 8


def judge(cases: Sequence[Case], places: Sequence[DeviceAddress] = ()) -> Verdict | None:
    """Name the first failure; None where there is no sign of one. `places` say which device has which address."""
    failures = sorted((case for case in cases if failed(case)), key=when)
    causes = [case for case in failures if not is_victim(case)]
    causes = [case for case in causes if is_cause(case)] or causes
    chains = chains_of(cases, places)
    if not chains:
        suspects = [*causes, *_vanished(cases), *failures]
        verdict = of_group(cases) if failures and not causes else None
        if verdict is None and suspects:
            verdict = _verdict(suspects[0], cases)
        return verdict
    chain = chains[0]
    if chain.end == "error" and chain.culprit.case is not None:
        return _with_chain(_verdict(cases[chain.culprit.case], cases), chain, cases)
    if all(case.rank is None and not case.findings.raised for case in causes):
        return of_whole_group(cases, chain) or with_tls(of_chain(chains, cases), chain, cases)
    return _verdict(causes[0], cases)


def judge_logs(cases: Sequence[Case], places: Sequence[DeviceAddress] = ()) -> Verdict | None:
    """Name the first failure in logs of which nobody knows how their ranks ended.

    A rank that just stops writing is a victim only where a scheduler has held the job together: without one, other
    ranks may have gone on to their end.
    """
    verdict = judge(cases, places)
    if verdict is None or verdict.chain or any(case.scheduler for case in cases):
        return verdict
    ended = {case.rank for case in cases if failed(case) or _end_is_known(case)}
    return replace(verdict, victims=tuple(rank for rank in verdict.victims if rank in ended))


def _with_chain(verdict: Verdict, chain: Chain, cases: Sequence[Case]) -> Verdict:
    """Add to an error who waited for it, in which order, and whether the clocks agree."""
    note = contradiction(chain, cases)
    advice = " ".join(part for part in (verdict.advice, note) if part) or None
    return replace(verdict, chain=steps_of(chain, cases, verdict.line), advice=advice)


def _vanished(cases: Sequence[Case]) -> list[Case]:
    """Find a rank that ended without a word: its peers saw the connection break, or went on while it did not."""
    ranks = {case.rank: case for case in cases if case.rank is not None and not _end_is_known(case)}
    for case in ranks.values():
        for port in [int(fact.values["port"]) for fact in case.findings.facts if fact.kind == "gone"]:
            peer = ranks.get((port - _FIRST_PORT) // _PORTS_EACH)
            if peer is not None and peer is not case and not failed(peer):
                return [_killed(peer)]
    steps = {case.findings.last_step for case in ranks.values()}
    if len(steps) > 1 and any(failed(case) for case in cases):
        behind = min(ranks.values(), key=lambda case: case.findings.last_step)
        if not failed(behind):
            return [_killed(behind)]
    return []


def _end_is_known(case: Case) -> bool:
    return case.exit_code is not None or case.signal is not None


def _killed(case: Case) -> Case:
    summary = "ended without a word: killed from outside, most likely (SIGKILL, for example for lack of memory)"
    return replace(case, cause="vanished", summary=summary)


def _verdict(first: Case, cases: Sequence[Case]) -> Verdict:
    """Describe the first failure, and what it did to the other ranks."""
    raised = last_exception(first)
    hit = _explaining_hit(first, raised)
    others = [case for case in cases if case.rank != first.rank]
    ended = [case for case in others if case.rank is not None and case.exit_code != 0]
    also_failed = _ranks([case for case in ended if case.ended_by_itself or (failed(case) and is_cause(case))])
    summary, advice, pattern = _explain(first, hit or _hit_in_summary(first, raised), raised)
    rank, log, line = first.rank, first.log, first.findings.lines or None
    traceback = (first.error or {}).get("traceback")
    if raised is not None:
        log, line = raised.log or log, raised.line
        traceback = traceback or raised.traceback
        if rank is None:
            rank = raised.rank
    elif hit is not None:
        log, line = hit.log or log, hit.line
    advice = " ".join((advice, *_other_kernel_lines(first, hit))).strip()
    return Verdict(
        rank=rank,
        host=first.host,
        exit_code=first.exit_code,
        signal=first.signal,
        cause=_cause(first, hit, raised),
        summary=cut_middle(summary, SUMMARY_LIMIT),
        advice=cut_middle(advice, SUMMARY_LIMIT) or None,
        log=log,
        line=line,
        traceback=cut_middle(traceback or "", TRACEBACK_LIMIT) or None,
        pattern=pattern,
        ties=_ties(first, others),
        also_failed=also_failed,
        victims=tuple(rank for rank in _ranks(ended) if rank not in also_failed),
        step=printed_step(first),
    )


def _cause(case: Case, hit: Hit | None, raised: Raised | None) -> str:
    cause = how_it_failed(case)
    if cause is None and (raised is not None or case.error):
        return "exception"
    if cause is None and hit is not None:
        return "pattern"
    return cause or "unknown"


def _ties(first: Case, others: Sequence[Case]) -> tuple[Tie, ...]:
    """Return the other ranks that may have failed first, those with the same words together."""
    ranks: dict[str, list[int]] = {}
    for case in others:
        if first.rank is not None and case.rank is not None and is_tie(case, first) and is_cause(case):
            ranks.setdefault(case.summary or "", []).append(case.rank)
    ties = [Tie(tuple(sorted(same)), summary) for summary, same in ranks.items()]
    return tuple(sorted(ties, key=lambda tie: tie.ranks)[:_MOST_TIES])


def _other_kernel_lines(case: Case, first: Hit | None) -> list[str]:
    """Name the other failures in a log of the kernel, whose lines have nothing to do with each other."""
    if first is None or not is_kernel_log(case.log):
        return []
    lines: dict[str, str] = {}
    for hit in case.findings.hits:
        pattern = hit.match.pattern
        if pattern.kind == "cause" and pattern.id != first.match.pattern.id:
            lines.setdefault(pattern.id, f"Line {hit.line}: {hit.match.summary}")
    return list(lines.values())[:_MOST_BESIDE]


def _ranks(cases: Sequence[Case]) -> tuple[int, ...]:
    return tuple(sorted({case.rank for case in cases if case.rank is not None}))


def _explaining_hit(case: Case, raised: Raised | None) -> Hit | None:
    """Return the pattern that explains a failure best."""
    if raised is None or not raised.is_labelled:
        return first_hit(case)
    for hit in case.findings.hits:  # other lines may be of other processes
        if raised.line <= hit.line <= raised.end:
            return hit
    return None


def _hit_in_summary(case: Case, raised: Raised | None) -> Hit | None:
    """Return the pattern in what a rank has reported itself: a full disk has no room for it in the log."""
    if raised is not None or case.cause != "exception":
        return None
    hits = scan((case.summary or "").splitlines()).hits
    return next((hit for hit in hits if hit.match.pattern.kind == "cause"), None)


def _who_kills(case: Case) -> str:
    """Say who may have sent SIGKILL: what was seen, and where to ask for what cannot be seen from here."""
    if not case.kernel:
        return ""
    where = case.host or "that host"
    return (
        "SIGKILL comes from outside: from the kernel for lack of memory, from a batch system or container for a limit,"
        f" or from a person (kill -9). Seen on {where}: {case.kernel}. Not seen from here: the batch system (sacct),"
        " the container's events, and who else may signal processes there; ask them or the administrator."
    )


def _explain(case: Case, hit: Hit | None, raised: Raised | None) -> tuple[str, str, str | None]:
    """Say why a case failed, what to do, and by which pattern: from its own message and from what its log shows."""
    if case.out_of_memory:
        return _explain_lack_of_memory(case)
    message = _message(case, hit, raised)
    if hit is None:
        return message or "no reason was found", _who_kills(case), None
    pattern, summary = hit.match.pattern, hit.match.summary
    if case.scheduler and pattern.kind == "cause":  # its own exception only lists what may be wrong
        return summary, pattern.advice, pattern.id
    return message or summary, f"{summary} {pattern.advice}", pattern.id


def _explain_lack_of_memory(case: Case) -> tuple[str, str, str]:
    summary = "killed by the kernel: out of memory"
    if case.child:
        summary = f"its child process {case.child} was {summary}"
    if case.kernel_line:
        summary = f"{summary} ({case.kernel_line})"
    advice = "Use fewer workers or data-loading processes per host, or a host with more memory."
    return summary, advice, "out-of-memory"


def _message(case: Case, hit: Hit | None, raised: Raised | None) -> str:
    """Return what a case says of its own failure; empty where it says nothing."""
    message = (case.error or {}).get("message")
    if not message and raised is not None:
        message = raised.summary
    message = with_headline(message or case.summary or "")
    if case.signal and (raised is None or not raised.summary.startswith("Fatal")):
        by = f"{signal_name(case.signal)}, as {case.kernel_line} says" if case.kernel_line else signal_name(case.signal)
        message = case.summary or f"killed by {by}"
    if case.child and case.cause in ("signal", "exit", "exception"):
        headline, *rest = message.split("\n")
        killer = signal_name(case.child_signal or 0)
        headline = f"{headline.rstrip('.')}, after its child process {case.child} was killed by {killer}"
        return "\n".join((headline, *rest))
    if case.signal == signals.SIGTERM and hit is not None and hit.match.pattern.kind == "cause":
        return f"{hit.match.summary} The rank was then ended by SIGTERM."
    return message
