"""Finds the words that a wrapper puts before all names of a network's modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

DEEPEST = 8
"""The most words before a name that are looked for."""


def find_wrapper(inner: Set[str], outer: Set[str]) -> tuple[str, int]:
    """Return the words before the outer names that give most inner ones a partner, and how many; none where unsure."""
    votes: Counter[str] = Counter()
    for name in outer:
        parts = name.split(".", DEEPEST)
        for index in range(1, len(parts)):
            if ".".join(parts[index:]) in inner:
                votes[".".join(parts[:index])] += 1
    best = votes.most_common(2)
    if not best or (len(best) > 1 and best[0][1] == best[1][1]):
        return "", 0
    return best[0]


def find_wrappers(first: Set[str], second: Set[str]) -> tuple[str, str]:
    """Return the words to take from the names of the first and of the second, so that more of them are the same."""
    same = len((first & second) - {""})
    before_second, second_count = find_wrapper(first, second)
    before_first, first_count = find_wrapper(second, first)
    if second_count > max(same, first_count):
        return "", before_second
    if first_count > max(same, second_count):
        return before_first, ""
    return "", ""


def unwrap(name: str, before: str) -> str | None:
    """Return a name without the words before it; None for what is outside of them."""
    if not before or name == before:
        return "" if before else name
    return name.removeprefix(f"{before}.") if name.startswith(f"{before}.") else None
