"""What is said beside a comparison: notes of the traces, modules that one network has not called, values not kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mslaunch.trace.cause import Pair, label
from mslaunch.trace.pairing import Side
from mslaunch.trace.reading import Recorded

SHOWN = 8
"""Names in a sentence."""


def collect_notes(
    one: Side, other: Side, pairs: Sequence[Pair], left: tuple[Sequence[Recorded], Sequence[Recorded]]
) -> Iterator[str]:
    """Say what a reader of the comparison has to know; `left` are the outputs of each side without a partner."""
    for side in (one, other):
        yield from (f"{side.trace.folder}: {note}" for note in side.trace.notes)
    for side in (one, other):
        if side.names.before:
            yield f"{side.trace.folder}: `{side.names.before}.` before its names is left out"
    yield from _not_called(one, left[0], other)
    yield from _not_called(other, left[1], one)
    parts = [pair for pair in pairs if pair.difference is not None and not pair.is_of_all]
    if parts:
        shown = [f"{label(pair.first)}: {pair.compared} of {pair.first.size}" for pair in parts]
        yield f"not every value was kept, so a part and the statistics of all are compared ({few(shown)})"


def _not_called(side: Side, left: Sequence[Recorded], other: Side) -> Iterator[str]:
    """Name the modules of a side without a partner that the other has, but has not called."""
    uncalled = {other.names.inside(name) for name in other.trace.not_called} - {None}
    missing = list(dict.fromkeys(one.name or "(network)" for one in left if side.names.inside(one.name) in uncalled))
    if missing:
        yield f"{few(missing)} {'was' if len(missing) == 1 else 'were'} not called in {other.trace.folder}"


def few(words: Sequence[str]) -> str:
    """`a, b and 3 more`."""
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return f"{', '.join(words[:SHOWN])}{more}"
