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
    last_words,
    when,
)
from mslaunch.diagnose.logs.scan import SUMMARY_LIMIT, TRACEBACK_LIMIT, Hit, Raised, scan
from mslaunch.diagnose.logs.sources import is_kernel_log
from mslaunch.diagnose.verdict import Tie, Verdict, signal_name
from mslaunch.diagnose.waiting.chain import Chain, steps_of
from mslaunch.diagnose.waiting.collective import (
    chain_verdict_parts,
    chains_of,
    contradiction,
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
    fallen = sorted((case for case in cases if failed(case)), key=when)
    causes = [case for case in fallen if not is_victim(case)]
    ranks_first = [case for case in causes if is_cause(case)] or causes
    chains = chains_of(cases, places)
    chain = chains[0] if chains else None
    if chain is not None and chain.end == "error" and chain.culprit.case is not None:
        return _with_chain(_verdict(cases[chain.culprit.case], cases), chain, cases)
    if chain is not None and all(case.rank is None and not case.findings.raised for case in ranks_first):
        return of_whole_group(cases, chain) or _of_chain(chains, cases)
    if chain is None and fallen and not ranks_first and (verdict := of_group(cases)) is not None:
        return verdict
    first = next(iter(ranks_first), None) or _vanished(cases) or next(iter(fallen), None)
    return None if first is None else _verdict(first, cases)


def judge_logs(cases: Sequence[Case], places: Sequence[DeviceAddress] = ()) -> Verdict | None:
    """Name the first failure in logs of which nobody knows how their ranks ended.

    A rank that just stops writing is a victim only where a scheduler has held the job together: without one, other
    ranks may have gone on to their end.
    """
    verdict = judge(cases, places)
    if verdict is None or verdict.chain or any(case.scheduler for case in cases):
        return verdict
    shown = {case.rank for case in cases if failed(case) or _end_is_known(case)}
    return replace(verdict, victims=tuple(rank for rank in verdict.victims if rank in shown))


def _with_chain(verdict: Verdict, chain: Chain, cases: Sequence[Case]) -> Verdict:
    """Add to an error who waited for it, in which order, and whether the clocks agree."""
    note = contradiction(chain, cases)
    advice = " ".join(part for part in (verdict.advice, note) if part) or None
    return replace(verdict, chain=steps_of(chain, [case.log for case in cases], verdict.line), advice=advice)


def _of_chain(chains: Sequence[Chain], cases: Sequence[Case]) -> Verdict:
    """The verdict where nobody shows an error of its own: the end of the chain that most lead to."""
    return with_tls(Verdict(**chain_verdict_parts(chains, cases)), chains[0], cases)


def _vanished(cases: Sequence[Case]) -> Case | None:
    """Find a rank that ended without a word: its peers saw the connection break, or went on while it did not."""
    ranks = {case.rank: case for case in cases if case.rank is not None and not _end_is_known(case)}
    for case in ranks.values():
        for port in case.findings.gone_ports:
            peer = ranks.get((port - _FIRST_PORT) // _PORTS_EACH)
            if peer is not None and peer is not case and not failed(peer):
                return _killed(peer)
    steps = {case.findings.last_step for case in ranks.values()}
    suffered = any(failed(case) for case in cases)
    if suffered and len(steps) > 1:
        behind = min(ranks.values(), key=lambda case: case.findings.last_step)
        return None if failed(behind) else _killed(behind)
    return None


def _end_is_known(case: Case) -> bool:
    return case.exit_code is not None or case.signal is not None


def _killed(case: Case) -> Case:
    summary = "ended without a word: killed from outside, most likely (SIGKILL, for example for lack of memory)"
    return replace(case, cause="vanished", summary=summary)


def _verdict(first: Case, cases: Sequence[Case]) -> Verdict:
    others = [case for case in cases if case.rank != first.rank]
    raised = last_words(first)
    hit = _known(first, raised)
    error = first.error or {}
    summary, advice, pattern = _words(first, hit or _in_summary(first, raised), raised)
    ended = [case for case in others if case.rank is not None and case.exit_code != 0]
    also_failed = _ranks([case for case in ended if case.ended_by_itself or (failed(case) and is_cause(case))])
    return Verdict(
        rank=first.rank if first.rank is not None or raised is None else raised.rank,
        host=first.host,
        exit_code=first.exit_code,
        signal=first.signal,
        cause=how_it_failed(first) or ("exception" if raised or error else "pattern" if hit else "unknown"),
        summary=cut_middle(summary, SUMMARY_LIMIT),
        advice=cut_middle(" ".join((advice or "", *_beside(first, hit))).strip(), SUMMARY_LIMIT) or None,
        log=(raised or hit or first).log or first.log,
        line=raised.line if raised else hit.line if hit else first.findings.lines or None,
        traceback=cut_middle(error.get("traceback") or (raised.traceback if raised else ""), TRACEBACK_LIMIT) or None,
        pattern=pattern,
        ties=_ties(first, others),
        also_failed=also_failed,
        victims=tuple(rank for rank in _ranks(ended) if rank not in also_failed),
        step=first.findings.last_step if any(first.findings.last_step) else None,
    )


def _ties(first: Case, others: Sequence[Case]) -> tuple[Tie, ...]:
    """Return the other ranks that may have failed first, those with the same words together."""
    ranks: dict[str, list[int]] = {}
    for case in others:
        if first.rank is not None and case.rank is not None and is_tie(case, first) and is_cause(case):
            ranks.setdefault(case.summary or "", []).append(case.rank)
    ties = [Tie(tuple(sorted(same)), summary) for summary, same in ranks.items()]
    return tuple(sorted(ties, key=lambda tie: tie.ranks)[:_MOST_TIES])


def _beside(case: Case, first: Hit | None) -> list[str]:
    """Name the other failures in a log of the kernel's, whose lines have nothing to do with each other."""
    if first is None or not is_kernel_log(case.log):
        return []
    found = {first.match.pattern.id: ""}
    for hit in case.findings.hits:
        if hit.match.pattern.kind == "cause":
            found.setdefault(hit.match.pattern.id, f"Line {hit.line}: {hit.match.summary}")
    return [words for words in found.values() if words][:_MOST_BESIDE]


def _ranks(cases: Sequence[Case]) -> tuple[int, ...]:
    return tuple(sorted({case.rank for case in cases if case.rank is not None}))


def _known(case: Case, raised: Raised | None) -> Hit | None:
    """Return the telling pattern of a log."""
    if raised is not None and raised.is_labelled:  # other lines may be of other processes
        told = (hit for hit in case.findings.hits if raised.line <= hit.line <= raised.end)
        return next(told, None)
    return first_hit(case)


def _in_summary(case: Case, raised: Raised | None) -> Hit | None:
    """Return the pattern in what a rank has reported itself: a full disk has no room for it in the log."""
    if raised is not None or case.cause != "exception":
        return None
    hits = scan((case.summary or "").splitlines()).hits
    return next((hit for hit in hits if hit.match.pattern.kind == "cause"), None)


def _who_kills(case: Case) -> str | None:
    """Say who may have sent SIGKILL: what was seen, and where to ask for what cannot be seen from here."""
    if not case.kernel:
        return None
    where = case.host or "that host"
    return (
        "SIGKILL comes from outside: from the kernel for lack of memory, from a batch system or container for a limit,"
        f" or from a person (kill -9). Seen on {where}: {case.kernel}. Not seen from here: the batch system (sacct),"
        " the container's events, and who else may signal processes there; ask them or the administrator."
    )


def _words(case: Case, hit: Hit | None, raised: Raised | None) -> tuple[str, str | None, str | None]:
    """Return summary, advice and pattern id."""
    if case.out_of_memory:
        who = f"its child process {case.child} was " if case.child else ""
        return (
            f"{who}killed by the kernel: out of memory{f' ({case.told_by})' if case.told_by else ''}",
            "Use fewer workers or data-loading processes per host, or a host with more memory.",
            "out-of-memory",
        )
    message = (case.error or {}).get("message") or (raised.summary if raised else None) or case.summary
    message = with_headline(message or "")
    if case.signal and (raised is None or not raised.summary.startswith("Fatal")):
        where = f", as {case.told_by} says" if case.told_by else ""
        message = case.summary or f"killed by {signal_name(case.signal)}{where}"
    if case.child and case.cause in ("signal", "exit", "exception"):
        headline, *rest = message.split("\n")
        by = signal_name(case.child_signal or 0)
        message = "\n".join((f"{headline.rstrip('.')}, after its child process {case.child} was killed by {by}", *rest))
    elif case.signal == signals.SIGTERM and hit is not None and hit.match.pattern.kind == "cause":
        message = f"{hit.match.summary} The rank was then ended by SIGTERM."
    if hit is None:
        return message or "no reason was found", _who_kills(case), None
    known = hit.match
    if case.scheduler and known.pattern.kind == "cause":
        return known.summary, known.pattern.advice, known.pattern.id  # its own exception only lists what may be wrong
    return message or known.summary, f"{known.summary} {known.pattern.advice}", known.pattern.id
