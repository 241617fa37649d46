"""What sets one rank apart from the others of its group: another collective, an earlier one, other TLS. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.diagnose.case import Case, failed
from mslaunch.diagnose.patterns.pattern_tables import Pattern, built_in_patterns
from mslaunch.diagnose.verdict import Step, Verdict
from mslaunch.diagnose.waiting.chain import Chain, peer_words
from mslaunch.diagnose.waiting.line_facts import Fact
from mslaunch.text import counted

_TLS = {"0": "off", "1": "on"}
_COMPARED = {
    "name": "in {0}, the others of its group in {1}",
    "index": "in collective {0} of its group, the others in {1}",
    "count": "in a collective of {0} elements, the others of {1}",
    "type": "in a collective of {0}, the others of {1}",
}
"""What ranks of a group have in common, the most telling first."""
_SAME_SIZE = re.compile(r"(?:Hcom)?(?:AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """The rank that differs, the line that shows it, and in which way."""

    case: int
    fact: Fact
    words: str


@dataclass(frozen=True, slots=True)
class _Task:
    """The collective in which a rank waited."""

    fact: Fact
    group: str
    values: Mapping[str, str]


def in_collective(cases: Sequence[Case], among: Collection[int]) -> Difference | None:
    """Find the rank that waits in another collective than all others of its group, or in an earlier one."""
    tasks = {number: task for number in among if (task := _task(cases[number])) is not None}
    for group in sorted({task.group for task in tasks.values()}):
        of_group = {number: task for number, task in tasks.items() if task.group == group}
        for what, words in _COMPARED.items():
            values = {number: task.values[what] for number, task in of_group.items() if what in task.values}
            if (odd := _odd_one(values)) is not None:
                alike = sum(value == values[odd] for value in values.values()) - 1
                own = f"{values[odd]} (as {counted(alike, 'other')})" if alike else values[odd]
                return Difference(odd, of_group[odd].fact, words.format(own, _other(values, odd)))
    return None


def in_whole_group(cases: Sequence[Case]) -> Difference | None:
    """Find the rank that differs in a group of which every rank waits: whom they wait for is one of them."""
    for group in sorted({group for case in cases for group in case.who.groups}):
        members = [number for number, case in enumerate(cases) if group in case.who.groups]
        size = max(cases[number].who.sizes.get(group, 0) for number in members)
        ranks = {cases[number].who.groups[group] for number in members}
        if len(ranks) == size and all(group in group_of(cases[number]) for number in members):
            found = in_collective(cases, members)
            if found is not None:
                return found
    return None


def _task(case: Case) -> _Task | None:
    """Return the first collective that a rank's log complains of; the size counts where all ranks have the same."""
    facts = [fact for fact in case.findings.facts if fact.kind == "task"]
    tagged = next((fact for fact in facts if "tag" in fact.values), None)
    if tagged is None:
        return None
    name, _, group = tagged.values["tag"].lstrip("_").partition("_")
    if "own_rank" in tagged.values:  # PyTorch's, which names no group
        name, group = tagged.values["tag"], ""
    known = next((fact.values for fact in facts if "count" in fact.values), {}) if _SAME_SIZE.match(name) else {}
    return _Task(tagged, group, {**known, **tagged.values, "name": name})


def group_of(case: Case) -> list[str]:
    """Return the groups of ranks, by their names, in whose collectives a rank waited."""
    task = _task(case)
    return [] if task is None else [group for group in case.who.groups if group in task.group]


def _odd_one(values: Mapping[int, str]) -> int | None:
    """Return one of the few that differ from most, of two the one that is behind; None where that is not clear."""
    counts = Counter(values.values())
    few = min(counts.values(), default=0)
    if len(counts) != 2 or (len(values) > 2 and few * 2 >= len(values)):
        return None
    return min(values, key=lambda number: (counts[values[number]], len(values[number]), values[number]))


def _other(values: Mapping[int, str], odd: int) -> str:
    return next(value for value in values.values() if value != values[odd])


def in_tls(cases: Sequence[Case], among: Collection[int]) -> Difference | None:
    """Find the rank whose NPU has TLS on where the others have it off, or the other way round."""
    told = {number: [fact for fact in cases[number].findings.facts if fact.kind == "tls"] for number in among}
    # The log of the device counts more than that of the host, which has a switch of its own.
    facts = {number: max(some, key=lambda fact: "/device-" in fact.log) for number, some in told.items() if some}
    values = {number: fact.values["tls"] for number, fact in facts.items() if fact.values["tls"] in _TLS}
    if len(set(values.values())) < 2:
        return None
    rarest = Counter(values.values()).most_common()[-1][0]
    odd = next(number for number, value in values.items() if value == rarest)
    few = counted(sum(value == rarest for value in values.values()), "NPU port")
    usual = _TLS[_other(values, odd)]
    return Difference(odd, facts[odd], f"TLS is {_TLS[rarest]} for {few} and {usual} for the others")


def turn(chain: Chain, last: int) -> Chain:
    """Return a cycle that ends with a certain case; a chain without it stays as it is."""
    around = next(number for number, wait in enumerate(chain.waits) if wait.waiter == chain.waits[-1].peer)
    waits = chain.waits[around:]
    at = next((number for number, wait in enumerate(waits, 1) if wait.waiter.case == last), None)
    if at is None:
        return chain
    waits = (*waits[at:], *waits[:at])
    return replace(chain, peers=tuple(wait.waiter for wait in waits), waits=waits)


_TLS_ROW, _COLLECTIVE_ROW = "hccl-tls", "hccl-inconsistent"


def with_tls(verdict: Verdict, chain: Chain, cases: Sequence[Case]) -> Verdict:
    """Say so where two ends that wait for each other differ in TLS; a peer that never tried to connect has no TLS."""
    among = [peer.case for peer in chain.peers if peer.case is not None]
    found = in_tls(cases, among) if chain.end == "cycle" else None
    if found is None:
        return verdict
    made = _of_difference(found, f"{found.words}, so that they cannot connect; {verdict.summary}", _TLS_ROW, cases)
    return replace(verdict, summary=made.summary, advice=made.advice, pattern=made.pattern)


def of_group(cases: Sequence[Case]) -> Verdict | None:
    """Judge ranks that all wait and name no peer: by what sets one of them apart, or by who of them said nothing."""
    waiting = [number for number, case in enumerate(cases) if failed(case)]
    found = in_collective(cases, waiting)
    if found is None:
        return _silent(cases, waiting)
    return _of_difference(found, f"{_name(cases[found.case])} is {found.words}", _COLLECTIVE_ROW, cases)


def of_whole_group(cases: Sequence[Case], chain: Chain) -> Verdict | None:
    """Judge a group whose ranks all wait, by the one that differs; whoever else a line names is not in the group."""
    found = in_whole_group(cases)
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
    groups = {group for number in waiting for group in group_of(cases[number])}
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
