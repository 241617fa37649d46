"""The verdict on a hung or broken collective: from the cases to the graph of waiting, and back to a sentence. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.diagnose.case import Case, failed, is_victim, printed_step, when
from mslaunch.diagnose.logs.scan import Hit
from mslaunch.diagnose.patterns.pattern import Pattern, built_in_patterns
from mslaunch.diagnose.verdict import Step, Verdict
from mslaunch.diagnose.waiting.chain import Chain, chain_words, find_chains, peer_name, peer_words, steps_of
from mslaunch.diagnose.waiting.graph import DeviceAddress, Peer, Wait, find_waits
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
class OddRank:
    """The rank that differs, the line that shows it, and in which way."""

    case: int
    fact: Fact
    description: str


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
        for what, template in _COMPARED.items():
            values = {number: task.values[what] for number, task in of_group.items() if what in task.values}
            if (odd := _odd_one(values)) is not None:
                others = [value for value in values.values() if value != values[odd]]
                alike = len(values) - len(others) - 1
                own = f"{values[odd]} (as {counted(alike, 'other')})" if alike else values[odd]
                return OddRank(odd, of_group[odd].fact, template.format(own, others[0]))
    return None


def in_whole_group(cases: Sequence[Case]) -> OddRank | None:
    """Find the rank that differs in a group of which every rank waits: whom they wait for is one of them."""
    for group in sorted({group for case in cases for group in case.who.groups}):
        members = [number for number, case in enumerate(cases) if group in case.who.groups]
        size = max(cases[number].who.sizes.get(group, 0) for number in members)
        ranks = {cases[number].who.groups[group] for number in members}
        if len(ranks) == size and all(group in group_of(cases[number]) for number in members):
            odd = in_collective(cases, members)
            if odd is not None:
                return odd
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
    values = {**tagged.values, "name": name}
    sized = next((fact for fact in facts if "count" in fact.values), None)
    if sized is not None and _SAME_SIZE.match(name):
        values = {**sized.values, **values}
    return _Task(tagged, group, values)


def group_of(case: Case) -> list[str]:
    """Return the groups of ranks, by their names, in whose collectives a rank waited."""
    task = _task(case)
    if task is None:
        return []
    return [group for group in case.who.groups if group in task.group]


def _odd_one(values: Mapping[int, str]) -> int | None:
    """Return one of the few that differ from most, of two the one that is behind; None where that is not clear."""
    counts = Counter(values.values())
    few = min(counts.values(), default=0)
    if len(counts) != 2 or (len(values) > 2 and few * 2 >= len(values)):
        return None
    return min(values, key=lambda number: (counts[values[number]], len(values[number]), values[number]))


def in_tls(cases: Sequence[Case], among: Collection[int]) -> OddRank | None:
    """Find the rank whose NPU has TLS on where the others have it off, or the other way round."""
    facts: dict[int, Fact] = {}
    for number in among:
        lines = [fact for fact in cases[number].findings.facts if fact.kind == "tls"]
        if lines:
            # The log of the device counts more than that of the host, which has a switch of its own.
            facts[number] = max(lines, key=lambda fact: "/device-" in fact.log)
    values = {number: fact.values["tls"] for number, fact in facts.items() if fact.values["tls"] in _TLS}
    if len(set(values.values())) < 2:
        return None
    (usual, _), (rare, count) = Counter(values.values()).most_common()
    odd = next(number for number, value in values.items() if value == rare)
    few = counted(count, "NPU port")
    return OddRank(odd, facts[odd], f"TLS is {_TLS[rare]} for {few} and {_TLS[usual]} for the others")


def with_tls(verdict: Verdict, chain: Chain, cases: Sequence[Case]) -> Verdict:
    """Say so where two ends that wait for each other differ in TLS; a peer that never tried to connect has no TLS."""
    if chain.end != "cycle":
        return verdict
    odd = in_tls(cases, _cases_in(chain))
    if odd is None:
        return verdict
    summary = f"{odd.description}, so that they cannot connect; {verdict.summary}"
    return replace(verdict, summary=summary, advice=_row("hccl-tls").advice, pattern="hccl-tls")


def of_group(cases: Sequence[Case]) -> Verdict | None:
    """Judge ranks that all wait and name no peer: by what sets one of them apart, or by who of them said nothing."""
    waiting = [number for number, case in enumerate(cases) if failed(case)]
    odd = in_collective(cases, waiting)
    if odd is None:
        return _silent(cases, waiting)
    return _of_odd_rank(odd, cases)


def of_whole_group(cases: Sequence[Case], chain: Chain) -> Verdict | None:
    """Judge a group whose ranks all wait, by the one that differs; whoever else a line names is not in the group."""
    odd = in_whole_group(cases)
    if odd is None or (chain.end == "cycle" and chain.culprit.case == odd.case):
        return None
    verdict = _of_odd_rank(odd, cases)
    if chain.culprit.case is not None:
        return verdict
    beside = f"{peer_words(chain.culprit)}, which the logs name as well, is not in this group."
    return replace(verdict, advice=f"{verdict.advice} {_capitalized(beside)}")


def _capitalized(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _of_odd_rank(odd: OddRank, cases: Sequence[Case]) -> Verdict:
    row = _row("hccl-inconsistent")
    case = cases[odd.case]
    victims = {other.rank for other in cases if other is not case and other.rank is not None and failed(other)}
    return Verdict(
        rank=case.rank,
        host=case.host,
        exit_code=case.exit_code,
        cause="pattern",
        summary=f"{_case_name(case)} is {odd.description}",
        advice=row.advice,
        log=odd.fact.log,
        line=odd.fact.line,
        pattern=row.id,
        victims=tuple(sorted(victims)),
    )


def _silent(cases: Sequence[Case], waiting: Sequence[int]) -> Verdict | None:
    """Find the ranks of a group whose logs show nothing, while most others of it waited in vain."""
    groups = {group for number in waiting for group in group_of(cases[number])}
    for group in sorted(groups):
        members = [case for case in cases if group in case.who.groups]
        silent = [case for case in members if not failed(case)]
        waiters = [case for case in members if failed(case)]
        if not silent or len(waiters) <= len(silent):
            continue
        first = silent[0]
        more = f" (and {counted(len(silent) - 1, 'other')})" if len(silent) > 1 else ""
        waited = counted(len(waiters), "rank")
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
            victims=tuple(sorted(case.rank for case in waiters if case.rank is not None)),
        )
    return None


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
    waits = find_waits(cases, places)
    if not waits:
        return []
    failures = {number for number, case in enumerate(cases) if failed(case)}
    culprits = {number for number in failures if not is_victim(cases[number])}
    chains = find_chains(waits, culprits, failures - culprits)
    return [_turned(_with_silent(chain, cases), cases) for chain in chains]


def _with_silent(chain: Chain, cases: Sequence[Case]) -> Chain:
    """Take the one log that shows no error, and does not say whose it is, for that of a process named by its place."""
    silent = [number for number, case in enumerate(cases) if case.rank is not None and not failed(case)]
    if chain.end != "outside" or len(silent) != 1 or len(chain.leading) < _ENOUGH:
        return chain
    case, culprit = cases[silent[0]], chain.culprit
    if case.host or case.device is not None or culprit.rank not in (None, case.rank):
        return chain
    peer = Peer(silent[0], case.rank, culprit.host, culprit.device)
    return replace(chain, peers=(*chain.peers[:-1], peer), end="silent")


def _turned(chain: Chain, cases: Sequence[Case]) -> Chain:
    """Let a cycle end with the rank that differs from the others in it; a way into the cycle is left out then."""
    odd = _odd_in_cycle(chain, cases)
    if odd is None:
        return chain
    around = next(number for number, wait in enumerate(chain.waits) if wait.waiter == chain.waits[-1].peer)
    waits = chain.waits[around:]
    at = next((number for number, wait in enumerate(waits, 1) if wait.waiter.case == odd.case), None)
    if at is None:
        return chain
    waits = (*waits[at:], *waits[:at])
    return replace(chain, peers=tuple(wait.waiter for wait in waits), waits=waits)


def _odd_in_cycle(chain: Chain, cases: Sequence[Case]) -> OddRank | None:
    if chain.end != "cycle":  # where waiting ends, the ranks before its end have not come as far as others
        return None
    return in_collective(cases, _cases_in(chain))


def _cases_in(chain: Chain) -> list[int]:
    return [peer.case for peer in chain.peers if peer.case is not None]


def of_chain(chains: Sequence[Chain], cases: Sequence[Case]) -> Verdict:
    """Judge by the end of the chain that most lead to, where nobody shows an error of its own."""
    chain = chains[0]
    last = chain.waits[-1]
    hit = _hit_of(last, cases)
    culprit = chain.culprit
    also_failed: set[int | None] = set()
    if chain.end == "link":
        # Either end of a broken link may be the bad one: the verdict names the one whose log is there.
        culprit = last.waiter
        also_failed = {other.waits[-1].waiter.rank for other in chains[1:] if other.end == "link"}
    log, step = last.log, None
    line: int | None = last.line
    culprit_line = None
    if culprit.case is not None:
        case = cases[culprit.case]
        step = printed_step(case)
        if chain.end != "cycle":
            culprit_line = case.findings.lines or None
        if chain.end not in ("cycle", "link"):
            log, line = case.log, culprit_line
    return Verdict(
        rank=culprit.rank,
        host=culprit.host,
        cause=chain.end,
        summary=_summary(chains, cases),
        advice=_advice(chain, cases, hit),
        log=log,
        line=line,
        pattern=None if hit is None else hit.match.pattern.id,
        also_failed=_ranks_but(culprit.rank, also_failed),
        victims=_ranks_but(culprit.rank, {peer.rank for peer in chain.leading}),
        step=step,
        chain=steps_of(chain, cases, culprit_line),
    )


def _ranks_but(excluded: int | None, ranks: Collection[int | None]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in ranks if rank is not None and rank != excluded))


def _advice(chain: Chain, cases: Sequence[Case], hit: Hit | None) -> str:
    odd = in_collective(cases, _cases_in(chain))
    if odd is not None and chain.end == "cycle":
        return _OTHER_COLLECTIVE
    advice = _ADVICE[chain.end]
    if hit is not None:
        advice = f"{hit.match.summary} {hit.match.pattern.advice}"
    if odd is None:
        return advice
    peer = next(peer for peer in chain.peers if peer.case == odd.case)
    return f"{advice} {_capitalized(peer_name(peer, cases))} is {odd.description}."


def _summary(chains: Sequence[Chain], cases: Sequence[Case]) -> str:
    summary = chain_words(chains[0], cases, _ending(chains[0], cases))
    if len(chains) == 1:
        return summary
    others = []
    for chain in chains[1 : 1 + _OTHERS_SHOWN]:
        others.append(f"{peer_name(chain.peers[0], cases)} to {peer_name(chain.culprit, cases)}")
    summary = f"{summary}; another chain leads from {', from '.join(others)}"
    more = len(chains) - 1 - len(others)
    if more:
        summary = f"{summary} and {more} more"
    return summary


def _ending(chain: Chain, cases: Sequence[Case]) -> str | None:
    """Say what is known of the end of a chain; None where there is no more than its kind."""
    odd = _odd_in_cycle(chain, cases)
    if odd is not None:
        return f"{peer_name(chain.culprit, cases)} is {odd.description}"
    if chain.end == "silent" and chain.culprit.case is not None and failed(cases[chain.culprit.case]):
        return "which waits as well and does not say for whom: look there first"
    return None


def _hit_of(wait: Wait, cases: Sequence[Case]) -> Hit | None:
    """Return the known pattern in the line of a step, else the first one of its log."""
    if wait.waiter.case is None:
        return None
    hits = cases[wait.waiter.case].findings.hits
    for hit in hits:
        if (hit.log, hit.line) == (wait.log, wait.line):
            return hit
    return next((hit for hit in hits if hit.match.pattern.kind == "victim"), None)


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
