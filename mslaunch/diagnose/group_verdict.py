"""The verdict on a group of ranks that all wait: the one that differs from the others, or that said nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mslaunch.diagnose import difference
from mslaunch.diagnose.case import Case, failed
from mslaunch.diagnose.chain import Chain
from mslaunch.diagnose.chain_words import peer_words
from mslaunch.diagnose.difference import Difference
from mslaunch.diagnose.pattern_tables import Pattern, built_in_patterns
from mslaunch.diagnose.verdict import Step, Verdict
from mslaunch.words import counted

_TLS_ROW, _COLLECTIVE_ROW = "hccl-tls", "hccl-inconsistent"


def with_tls(verdict: Verdict, chain: Chain, cases: Sequence[Case]) -> Verdict:
    """Say so where two ends that wait for each other differ in TLS; a peer that never tried to connect has no TLS."""
    among = [peer.case for peer in chain.peers if peer.case is not None]
    found = difference.in_tls(cases, among) if chain.end == "cycle" else None
    if found is None:
        return verdict
    made = _of_difference(found, f"{found.words}, so that they cannot connect; {verdict.summary}", _TLS_ROW, cases)
    return replace(verdict, summary=made.summary, advice=made.advice, pattern=made.pattern)


def of_group(cases: Sequence[Case]) -> Verdict | None:
    """Judge ranks that all wait and name no peer: by what sets one of them apart, or by who of them said nothing."""
    waiting = [number for number, case in enumerate(cases) if failed(case)]
    found = difference.in_collective(cases, waiting)
    if found is None:
        return _silent(cases, waiting)
    return _of_difference(found, f"{_name(cases[found.case])} is {found.words}", _COLLECTIVE_ROW, cases)


def of_whole_group(cases: Sequence[Case], chain: Chain) -> Verdict | None:
    """Judge a group whose ranks all wait, by the one that differs; whoever else a line names is not in the group."""
    found = difference.in_whole_group(cases)
    if found is None or (chain.end == "cycle" and chain.culprit.case == found.case):
        return None
    verdict = _of_difference(found, f"{_name(cases[found.case])} is {found.words}", _COLLECTIVE_ROW, cases)
    if chain.culprit.case is not None:
        return verdict
    beside = f"{peer_words(chain.culprit)}, which the logs name as well, is not in this group."
    return replace(verdict, advice=f"{verdict.advice} {beside[0].upper()}{beside[1:]}")


def _of_difference(found: Difference, summary: str, row_id: str, cases: Sequence[Case]) -> Verdict:
    row = _row(row_id)
    case = cases[found.case]
    victims = {other.rank for other in cases if other is not case and other.rank is not None and failed(other)}
    return Verdict(
        rank=case.rank,
        host=case.host,
        exit_code=case.exit_code,
        cause="pattern",
        summary=summary,
        advice=row.advice,
        log=found.fact.log,
        line=found.fact.line,
        pattern=row.id,
        victims=tuple(sorted(victims)),
    )


def _silent(cases: Sequence[Case], waiting: Sequence[int]) -> Verdict | None:
    """Find the ranks of a group whose logs show nothing, while most others of it waited in vain."""
    groups = {group for number in waiting for group in difference.group_of(cases[number])}
    for group in sorted(groups):
        members = [case for case in cases if group in case.who.groups]
        silent = [case for case in members if not failed(case)]
        told = [case for case in members if failed(case)]
        if silent and len(told) > len(silent):
            return _of_silent(silent, told)
    return None


def _of_silent(silent: Sequence[Case], told: Sequence[Case]) -> Verdict:
    first = silent[0]
    more = f" (and {counted(len(silent) - 1, 'other')})" if len(silent) > 1 else ""
    waited = counted(len(told), "rank")
    return Verdict(
        rank=first.rank,
        host=first.host,
        cause="silent",
        summary=f"{_name(first)}{more} left no error, while {waited} of its group waited in a collective:"
        " look there first",
        advice=_row("hccl-task-timeout").advice,
        log=first.log,
        line=first.findings.lines or None,
        pattern="hccl-task-timeout",
        victims=tuple(sorted(case.rank for case in told if case.rank is not None)),
    )


def _row(row_id: str) -> Pattern:
    return next(row for row in built_in_patterns() if row.id == row_id)


def _name(case: Case) -> str:
    return peer_words(Step(case.rank, case.host, case.device, None, None), case.log)
