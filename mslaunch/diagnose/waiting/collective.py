"""The verdict on a hung or broken collective: from the cases to the graph of waiting, and back to a sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mslaunch.diagnose.case import Case, failed, is_victim, when
from mslaunch.diagnose.logs.scan import Hit
from mslaunch.diagnose.waiting import group
from mslaunch.diagnose.waiting.chain import Chain, chain_words, find_chains, peer_words, steps_of
from mslaunch.diagnose.waiting.graph import Peer, Place, Wait, Writer, find_waits
from mslaunch.diagnose.waiting.line_facts import Fact
from mslaunch.diagnose.waiting.writer import is_address

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


def chains_of(cases: Sequence[Case], places: Sequence[Place]) -> list[Chain]:
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
    return chain if found is None else group.turn(chain, found.case)


def _difference(chain: Chain, cases: Sequence[Case]) -> group.Difference | None:
    if chain.end != "cycle":  # where waiting ends, the ranks before its end have not come as far as others
        return None
    return group.in_collective(cases, [peer.case for peer in chain.peers if peer.case is not None])


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
    beside = group.in_collective(cases, [peer.case for peer in chain.peers if peer.case is not None])
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
