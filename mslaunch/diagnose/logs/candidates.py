"""Which lines of a log are worth a look: those with a text that some pattern needs, found in one pass over bytes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from mslaunch.diagnose.patterns.pattern import Row, rows
from mslaunch.diagnose.waiting.line_facts import Form, forms

PEER, EXCEPTION = "peer", "exception"
_MARKS = {
    b"Client connected end of file! Peer": PEER,
    b"Traceback (most recent call last)": EXCEPTION,
    b"Fatal Python error: ": EXCEPTION,
    b'  File "': EXCEPTION,
}
_SETS_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Kind:
    """What a line may tell that holds some of the texts."""

    marks: frozenset[str]
    rows: tuple[Row, ...]
    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    automaton: Any
    literals: tuple[bytes, ...]
    rows: tuple[tuple[int, ...], ...]
    """For each literal the rows of the pattern table that need it."""
    forms: tuple[tuple[int, ...], ...]


def find(data: bytes) -> list[tuple[int, int, int]]:
    """Return where the texts stand: number of the text, start and end of each."""
    found: list[tuple[int, int, int]] = _table().automaton.find_matches_as_indexes(data, overlapping=True)
    return found


@lru_cache(_SETS_REMEMBERED)
def kind_of(literals: frozenset[int]) -> Kind:
    """Return what a line may tell that holds these texts, by their numbers."""
    table = _table()
    numbers = sorted({number for one in literals for number in table.rows[one]}.union(always()))
    form_numbers = sorted({number for one in literals for number in table.forms[one]})
    return Kind(
        frozenset(_MARKS[table.literals[one]] for one in literals if table.literals[one] in _MARKS),
        tuple(rows()[number] for number in numbers),
        tuple(forms()[number] for number in form_numbers),
    )


@cache
def always() -> tuple[int, ...]:
    """Rows that no literal tells of: they are tried on every line."""
    return tuple(number for number, row in enumerate(rows()) if row.literals is None)


@cache
def _table() -> _Table:
    from ahocorasick_rs import BytesAhoCorasick, Implementation

    found: dict[bytes, tuple[list[int], list[int]]] = {literal: ([], []) for literal in _MARKS}
    needed: tuple[list[Collection[str]], ...] = (
        [row.literals or () for row in rows()],
        [form.literals for form in forms()],
    )
    for which, table in enumerate(needed):
        for number, texts in enumerate(table):
            for text in texts:
                found.setdefault(text.encode("utf-8", "replace"), ([], []))[which].append(number)
    # Left to itself the library takes a slower automaton for more than a hundred texts.
    automaton = BytesAhoCorasick(list(found), implementation=Implementation.DFA)
    by_row, by_form = ([tuple(numbers[which]) for numbers in found.values()] for which in (0, 1))
    return _Table(automaton, tuple(found), tuple(by_row), tuple(by_form))
