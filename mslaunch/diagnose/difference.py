"""What sets one rank apart from the others of its group: another collective, an earlier one, other TLS. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mslaunch.diagnose.case import Case
from mslaunch.diagnose.chain import Chain
from mslaunch.diagnose.facts import Fact
from mslaunch.words import counted

_TLS = {"0": "off", "1": "on"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The rank that differs, the line that shows it, and in which way."""

    case: int
    fact: Fact
    words: str


def in_collective(cases: Sequence[Case], among: Collection[int]) -> Difference | None:
    """Find the rank that waits in another collective than all others of its group, or in an earlier one."""
    tasks = _first_facts(cases, among, "task")
    for group in sorted({_group(fact) for fact in tasks.values()}):
        of_group = {number: fact for number, fact in tasks.items() if _group(fact) == group}
        names = {number: fact.values["tag"].partition("_")[0] for number, fact in of_group.items()}
        if len(set(names.values())) > 1:
            return _told(of_group, names, "{own}", "{others}")
        numbers = {number: int(fact.values["index"]) for number, fact in of_group.items() if "index" in fact.values}
        if len(set(numbers.values())) > 1:
            return _told(of_group, numbers, "its collective {own}", "theirs {others}")
    return None


def _told(facts: Mapping[int, Fact], values: Mapping[int, str | int], own: str, others: str) -> Difference:
    """Name the one that differs from all others; of two, or of many that all differ, the one that is behind."""
    counts = Counter(values.values())
    is_one = len(values) > 2 and sorted(counts.values()) == [1, len(values) - 1]
    odd = min(values, key=lambda number: (counts[values[number]] if is_one else 0, values[number]))
    other = next(value for value in values.values() if value != values[odd])
    words = f"is in {own.format(own=values[odd])}, the others of its group are in {others.format(others=other)}"
    return Difference(odd, facts[odd], words)


def in_tls(cases: Sequence[Case]) -> Difference | None:
    """Find a rank whose NPU has TLS on where most have it off, or the other way round."""
    facts = _first_facts(cases, range(len(cases)), "tls")
    values = {number: fact.values["tls"] for number, fact in facts.items() if fact.values["tls"] in _TLS}
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return None
    (usual, many), (other, few) = counts[:2]
    odd = next(number for number, value in values.items() if value == other)
    names = counted(few, "NPU port"), counted(many, "other")
    return Difference(odd, facts[odd], f"TLS is {_TLS[other]} for {names[0]} and {_TLS[usual]} for {names[1]}")


def _first_facts(cases: Sequence[Case], among: Collection[int], kind: str) -> dict[int, Fact]:
    found = {}
    for number in among:
        fact = next((fact for fact in cases[number].findings.facts if fact.kind == kind), None)
        if fact is not None:
            found[number] = fact
    return found


def _group(fact: Fact) -> str:
    """Return the group in the tag of a collective, which begins with the collective's name."""
    return fact.values["tag"].partition("_")[2]


def turn(chain: Chain, last: int) -> Chain:
    """Return a cycle that ends with a certain case; a chain without it stays as it is."""
    around = next(number for number, wait in enumerate(chain.waits) if wait.waiter == chain.waits[-1].peer)
    waits = chain.waits[around:]
    at = next((number for number, wait in enumerate(waits, 1) if wait.waiter.case == last), None)
    if at is None:
        return chain
    waits = (*waits[at:], *waits[:at])
    return replace(chain, peers=tuple(wait.waiter for wait in waits), waits=waits)
