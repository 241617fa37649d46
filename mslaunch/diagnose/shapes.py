"""Shapes of lines: a log has millions of lines and few shapes, so what a line may tell is found out once a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from mslaunch.diagnose.patterns import Row, rows

TIME, STEP, PEER, EXCEPTION = "time", "step", "peer", "exception"
_MARKS = {
    b"0000-00-00-00:00:00.000.000": TIME,
    b"poch:": STEP,
    b"POCH:": STEP,
    b"Client connected end of file! Peer": PEER,
    b"Traceback (most recent call last)": EXCEPTION,
    b"Fatal Python error: ": EXCEPTION,
    b'  File "': EXCEPTION,
}
_DIGITS = bytes.maketrans(b"0123456789", b"0000000000")
_REMEMBERED = 8 << 20  # bytes of shapes; a log whose lines are all different is scanned with no more memory


@dataclass(frozen=True, slots=True)
class Kind:
    """What a line of one shape may tell."""

    marks: frozenset[str]
    rows: tuple[Row, ...]


@dataclass(slots=True)
class Shapes:
    """The shapes that have been seen, and what they may tell; nothing for most."""

    _known: dict[bytes, Kind | None] = field(default_factory=dict)
    _size: int = 0

    def find(self, shapes: set[bytes]) -> dict[bytes, Kind]:
        """Return those shapes that may tell something."""
        if self._size > _REMEMBERED:
            self._known, self._size = {}, 0
        known = self._known
        unseen = [shape for shape in shapes if shape not in known]
        if unseen:
            self._learn(unseen)
        return {shape: kind for shape in shapes if (kind := known[shape])}

    def _learn(self, unseen: list[bytes]) -> None:
        together = b"\n".join(unseen)
        self._size += len(together)
        present = [literal for literal in _literals() if literal in together]
        if not present and not _always():
            self._known.update(dict.fromkeys(unseen))
            return
        for shape in unseen:
            self._known[shape] = _kind([literal for literal in present if literal in shape])


@cache
def _always() -> tuple[int, ...]:
    """Rows that no literal tells of: they are tried on every line."""
    return tuple(number for number, row in enumerate(rows()) if row.literals is None)


@cache
def _literals() -> dict[bytes, tuple[frozenset[str], tuple[int, ...]]]:
    """Return marks and row numbers by the text, as a shape, that stands for them."""
    found: dict[bytes, tuple[set[str], list[int]]] = {}
    for literal, mark in _MARKS.items():
        found.setdefault(literal, (set(), []))[0].add(mark)
    for number, row in enumerate(rows()):
        for text in row.literals or ():
            found.setdefault(shape_of(text.encode("utf-8", "replace")), (set(), []))[1].append(number)
    return {literal: (frozenset(marks), tuple(numbers)) for literal, (marks, numbers) in found.items()}


def _kind(literals: list[bytes]) -> Kind | None:
    table = _literals()
    marks = frozenset[str]().union(*(table[literal][0] for literal in literals))
    numbers = sorted({number for literal in literals for number in table[literal][1]}.union(_always()))
    return Kind(marks, tuple(rows()[number] for number in numbers)) if marks or numbers else None


def shape_of(data: bytes) -> bytes:
    """Return a text with every digit made 0: lines that differ in their numbers only have one shape."""
    return data.translate(_DIGITS)
