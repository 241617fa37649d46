"""Which texts a line must hold for a regular expression to match it: a quick test before a slow one."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

_SHORTEST = 3


def required_literals(regex: str) -> frozenset[str] | None:
    """Return texts of which every match holds at least one; None where nothing is known."""
    try:
        parsed = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse").parse(regex)
        literals = None if parsed.state.flags & re.IGNORECASE else _of_sequence(parsed)
    except Exception:  # a private module of Python's: without it every line is tried, which is slow and right
        return None
    return literals if literals and _worth(literals) >= _SHORTEST else None


def _of_sequence(items: Iterable[Any]) -> frozenset[str] | None:
    """Return the best choice of a sequence, all of whose items occur."""
    choices: list[frozenset[str]] = []
    run: list[Any] = []
    for item in items:
        if str(item[0]) == "LITERAL":
            run.append(item)
            continue
        inner = _of_item(str(item[0]), item[1], run)
        choices += [_text(run), *([inner] if inner else [])]
        run = []
    return max([*choices, _text(run)], key=_worth)


def _of_item(name: str, argument: Any, before: list[Any]) -> frozenset[str] | None:
    if name == "BRANCH":  # Python has put what all branches begin with before them
        branches = [_of_sequence([*before, *branch]) for branch in argument[1]]
        choices = [branch for branch in branches if branch is not None]
        return frozenset[str]().union(*choices) if len(choices) == len(branches) else None
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
        return _of_sequence(argument[2])
    if name == "SUBPATTERN":
        _, added, _, inner = argument
        return None if added & re.IGNORECASE else _of_sequence(inner)
    return None


def _text(run: list[Any]) -> frozenset[str]:
    return frozenset({"".join(chr(code) for _, code in run)})


def _worth(choice: frozenset[str]) -> float:
    """A choice is as good as its shortest text; digits count little, since logs are full of them."""
    return min(sum(0.25 if character.isdigit() else 1.0 for character in text) for text in choice)
