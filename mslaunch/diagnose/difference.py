"""What sets one rank apart from the others of its group: another collective, an earlier one, other TLS. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.chain import Chain
from mslaunch.diagnose.facts import Fact
from mslaunch.words import counted

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
