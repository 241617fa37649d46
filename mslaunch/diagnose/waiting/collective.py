"""What sets one rank apart from the others of its group: another collective, an earlier one, other TLS. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mslaunch.diagnose.case import Case, failed, is_victim, when
from mslaunch.diagnose.logs.scan import Hit
from mslaunch.diagnose.patterns.pattern import Pattern, built_in_patterns
from mslaunch.diagnose.verdict import Step, Verdict
from mslaunch.diagnose.waiting.chain import Chain, chain_words, find_chains, peer_words, steps_of
from mslaunch.diagnose.waiting.graph import DeviceAddress, Peer, Wait, Writer, find_waits
from mslaunch.diagnose.waiting.line_facts import Fact
from mslaunch.diagnose.waiting.writer import is_address
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
class OddRank:
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


def in_collective(cases: Sequence[Case], among: Collection[int]) -> OddRank | None:
    """Find the rank that waits in another collective than all others of its group, or in an earlier one."""
    tasks = {number: task for number in among if (task := _task(cases[number])) is not None}
    for group in sorted({task.group for task in tasks.values()}):
        of_group = {number: task for number, task in tasks.items() if task.group == group}
        for what, words in _COMPARED.items():
            values = {number: task.values[what] for number, task in of_group.items() if what in task.values}
            if (odd := _odd_one(values)) is not None:
                alike = sum(value == values[odd] for value in values.values()) - 1
                own = f"{values[odd]} (as {counted(alike, 'other')})" if alike else values[odd]
                return OddRank(odd, of_group[odd].fact, words.format(own, _other(values, odd)))
    return None


def in_whole_group(cases: Sequence[Case]) -> OddRank | None:
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


def in_tls(cases: Sequence[Case], among: Collection[int]) -> OddRank | None:
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
    return OddRank(odd, facts[odd], f"TLS is {_TLS[rarest]} for {few} and {usual} for the others")


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
    return _of_difference(found, f"{_case_name(cases[found.case])} is {found.words}", _COLLECTIVE_ROW, cases)


def of_whole_group(cases: Sequence[Case], chain: Chain) -> Verdict | None:
    """Judge a group whose ranks all wait, by the one that differs; whoever else a line names is not in the group."""
    found = in_whole_group(cases)
    if found is None or (chain.end == "cycle" and chain.culprit.case == found.case):
        return None
    verdict = _of_difference(found, f"{_case_name(cases[found.case])} is {found.words}", _COLLECTIVE_ROW, cases)
    if chain.culprit.case is not None:
        return verdict
    beside = f"{peer_words(chain.culprit)}, which the logs name as well, is not in this group."
    return replace(verdict, advice=f"{verdict.advice} {beside[0].upper()}{beside[1:]}")


def _of_difference(found: OddRank, summary: str, row_id: str, cases: Sequence[Case]) -> Verdict:
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
        summary=f"{_case_name(first)}{more} left no error, while {waited} of its group waited in a collective:"
        " look there first",
        advice=_row("hccl-task-timeout").advice,
        log=first.log,
        line=first.findings.lines or None,
        pattern="hccl-task-timeout",
        victims=tuple(sorted(case.rank for case in told if case.rank is not None)),
    )


def _row(row_id: str) -> Pattern:
    return next(row for row in built_in_patterns() if row.id == row_id)


def _case_name(case: Case) -> str:
    return peer_words(Step(case.rank, case.host, case.device, None, None), case.log)


_OTHERS_SHOWN = 3
_ENOUGH = 2  # ranks that must lead to a process before the one silent log is taken for its own
_ADVICE = {
    "silent": "See whether its process still runs (`mslaunch stacks`, py-spy), and whether its device and network are"
    " well (npu-smi info, hccn_tool -i N -link -g).",
    "outside": "See whether that host and the process there still run, and whether a firewall is between; then put its"
    " logs beside these and diagnose again.",
    "cycle": "Check the network between both ends (hccn_tool -i N -ping -g address A, -tls -g); where it is well,"
    " compare what both ranks called last: collectives in another order wait for each other likewise.",
    "link": "Compare hccn_tool -i N -link_stat -g and -stat -g at both ends: cable, optics, switch port.",
}
_OTHER_COLLECTIVE = (
    "Compare the data, shapes and branches of that rank with those of the others, and whether it skipped a step:"
    " all ranks of a group must call the same collectives in the same order."
)


def chains_of(cases: Sequence[Case], places: Sequence[DeviceAddress]) -> list[Chain]:
    """Return the chains of waiting that the logs tell of, the most telling first."""
    writers = [Writer(case.who, (*case.findings.facts, *_blamed(case)), case.host) for case in cases]
    waits = find_waits(writers, places)
    if not waits:
        return []
    fallen = {number for number, case in enumerate(cases) if failed(case)}
    own = {number for number in fallen if not is_victim(cases[number])}
    return [_turned(_with_silent(chain, cases), cases) for chain in find_chains(waits, own, fallen - own)]


def _with_silent(chain: Chain, cases: Sequence[Case]) -> Chain:
    """Take the one log that shows no error, and does not say whose it is, for that of a process named by its place."""
    silent = [number for number, case in enumerate(cases) if case.rank is not None and not failed(case)]
    if chain.end != "outside" or len(silent) != 1 or len(chain.leading) < _ENOUGH:
        return chain
    case, culprit = cases[silent[0]], chain.culprit
    if case.host or case.device is not None or culprit.rank not in (None, case.rank):
        return chain
    found = Peer(silent[0], case.rank, culprit.host, culprit.device)
    return replace(chain, peers=(*chain.peers[:-1], found), end="silent")


def _turned(chain: Chain, cases: Sequence[Case]) -> Chain:
    """Let a cycle end with the rank that differs from the others in it."""
    found = _difference(chain, cases)
    return chain if found is None else turn(chain, found.case)


def _difference(chain: Chain, cases: Sequence[Case]) -> OddRank | None:
    if chain.end != "cycle":  # where waiting ends, the ranks before its end have not come as far as others
        return None
    return in_collective(cases, [peer.case for peer in chain.peers if peer.case is not None])


def _blamed(case: Case) -> list[Fact]:
    """Return the peers that rows of the pattern table name, where no form of ours has read the same line."""
    known = {(fact.log, fact.line) for fact in case.findings.facts}
    found = []
    for hit in case.findings.hits:
        blamed = hit.match.blamed
        if blamed and (hit.log, hit.line) not in known:
            address, _, device = blamed.partition("/")
            if blamed.isdecimal() and len(blamed) < 10:
                values = {"rank": blamed}
            elif is_address(address):
                values = {"server": address, "physical": device} if device.isdecimal() else {"address": address}
            else:
                continue
            found.append(Fact(hit.line, "wait", None, values, hit.time, hit.log))
    return found


def chain_verdict_parts(chains: Sequence[Chain], cases: Sequence[Case]) -> dict[str, Any]:
    """Return the fields of the verdict where nobody shows an error of its own."""
    chain = chains[0]
    logs = [case.log for case in cases]
    last = chain.waits[-1]
    # Either end of a broken link may be the bad one: the one whose log is there is named, the other in the sentence.
    culprit = last.waiter if chain.end == "link" else chain.culprit
    case = None if culprit.case is None else cases[culprit.case]
    hit = _hit_of(last, cases)
    same = [other for other in chains[1:] if other.end == "link" and chain.end == "link"]
    also = {other.waits[-1].waiter.rank for other in same}
    line = None if case is None or chain.end == "cycle" else case.findings.lines or None
    ranks = {peer.rank for peer in chain.leading}
    return {
        "rank": culprit.rank,
        "host": culprit.host,
        "cause": chain.end,
        "summary": _summary(chains, cases),
        "advice": _advice(chain, cases, hit),
        "log": last.log if case is None or chain.end in ("cycle", "link") else case.log,
        "line": last.line if case is None or chain.end in ("cycle", "link") else line,
        "pattern": None if hit is None else hit.match.pattern.id,
        "also_failed": tuple(sorted(rank for rank in also if rank is not None and rank != culprit.rank)),
        "victims": tuple(sorted(rank for rank in ranks if rank is not None and rank != culprit.rank)),
        "step": case.findings.last_step if case is not None and any(case.findings.last_step) else None,
        "chain": steps_of(chain, logs, line),
    }


def _advice(chain: Chain, cases: Sequence[Case], hit: Hit | None) -> str:
    if _difference(chain, cases) is not None:
        return _OTHER_COLLECTIVE
    words = f"{hit.match.summary} {hit.match.pattern.advice}" if hit else _ADVICE[chain.end]
    beside = in_collective(cases, [peer.case for peer in chain.peers if peer.case is not None])
    if beside is None:
        return words
    odd = next(peer for peer in chain.peers if peer.case == beside.case)
    name = _short(odd, [case.log for case in cases])
    return f"{words} {name[0].upper()}{name[1:]} is {beside.words}."


def _summary(chains: Sequence[Chain], cases: Sequence[Case]) -> str:
    logs = [case.log for case in cases]
    words = chain_words(chains[0], logs, _ending(chains[0], cases))
    others = [f"{_short(chain.peers[0], logs)} to {_short(chain.culprit, logs)}" for chain in chains[1:]]
    if not others:
        return words
    more = f" and {len(others) - _OTHERS_SHOWN} more" if len(others) > _OTHERS_SHOWN else ""
    return f"{words}; another chain leads from {', from '.join(others[:_OTHERS_SHOWN])}{more}"


def _ending(chain: Chain, cases: Sequence[Case]) -> str | None:
    """Say what is known of the end of a chain; None where there is no more than its kind."""
    if (found := _difference(chain, cases)) is not None:
        return f"{_short(chain.culprit, [case.log for case in cases])} is {found.words}"
    if chain.end == "silent" and chain.culprit.case is not None and failed(cases[chain.culprit.case]):
        return "which waits as well and does not say for whom: look there first"
    return None


def _short(peer: Peer, logs: Sequence[str]) -> str:
    return peer_words(peer, None if peer.case is None else logs[peer.case])


def _hit_of(wait: Wait, cases: Sequence[Case]) -> Hit | None:
    """Return the known pattern in the line of a step, else the first one of its log."""
    if wait.waiter.case is None:
        return None
    case = cases[wait.waiter.case]
    at_line = (hit for hit in case.findings.hits if (hit.log, hit.line) == (wait.log, wait.line))
    beside = (hit for hit in case.findings.hits if hit.match.pattern.kind == "victim")
    return next(at_line, None) or next(beside, None)


def contradiction(chain: Chain, cases: Sequence[Case]) -> str | None:
    """Say so where, by the times in the logs, somebody had given up waiting before the culprit failed."""
    if chain.culprit.case is None:
        return None
    failed_at = when(cases[chain.culprit.case])
    times = [wait.time for wait in chain.waits if wait.time is not None]
    if failed_at == float("inf") or not times or failed_at <= min(times):
        return None
    late = failed_at - min(times)
    return (
        f"By the times in the logs it failed {late:.0f} s after a rank that waited for it: "
        "the clocks of the hosts differ, so the order of waiting counts here, not the times."
    )
