"""Tells which rules apply to no parameter: a typo in a rule, or rules for another network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mslaunch.weights.names import Rule, first_match, is_ready

SHOWN = 8


def unused_rules(name: str, rules: Sequence[Rule], parameters: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each rule of a file that applies to no parameter, or one where none applies.

    Rules that come with mslaunch cover variants of a network, so some of them may be unused.
    """
    listed = list(parameters)
    used = {found[0].where for one in listed if (found := first_match(rules, one))}
    unused = [rule for rule in rules if rule.where not in used]
    if unused and not used:
        first = f"; the first one matches {rules[0].sources[0]}, the first parameter is {listed[0]}" if listed else ""
        return (f"--names {name}: no rule of it applies to a parameter{first}",)
    if is_ready(name):
        return ()
    notes = [f"{rule.where} ({rule.sources[0]}) applies to no parameter" for rule in unused[:SHOWN]]
    more = [f"--names {name}: {len(unused) - SHOWN} more of its rules are without use"] if len(unused) > SHOWN else []
    return (*notes, *more)


def unmatched_names(name: str, rules: Sequence[Rule], parameters: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence on parameters that no rule of a network matches: it is not quite that network."""
    if not is_ready(name):
        return ()
    left = [one for one in parameters if not first_match(rules, one)]
    if not left:
        return ()
    count = "1 parameter matches" if len(left) == 1 else f"{len(left)} parameters match"
    return (f"--names {name}: {count} no rule, so names are kept: {left[0]}{' …' if len(left) > 1 else ''}",)
