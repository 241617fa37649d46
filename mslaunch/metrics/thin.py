"""Makes fewer rows of many: neighbours of one source become one row that keeps their extremes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from mslaunch.metrics.rows import Row, Source, merge

FEWEST = 2  # rows that every source keeps


def thin(rows: Callable[[], Iterable[Row]], most: int) -> Iterator[Row]:
    """Yield about `most` rows at most, in order; they are read twice, and few are held at a time.

    Every source gets the same number of rows, spread evenly over what it has told. The newest row of each stays as it
    is: a thinned file ends as the whole one did.
    """
    told, number = _count(rows())
    fair = max(FEWEST, most // max(1, len(told))) - 1
    size = {source: -(-count // fair) for source, count in told.items()}
    waiting: dict[Source, list[Row]] = {}
    seen: Counter[Source] = Counter()
    for row in rows():
        source = row.source
        seen[source] += 1
        is_newest = seen[source] == number[source]
        some = waiting.setdefault(source, [])
        if not is_newest:
            some.append(row)
        if some and (is_newest or sum(one.count for one in some) >= size[source]):
            yield merge(some)
            some.clear()
        if is_newest:
            yield row


def _count(rows: Iterable[Row]) -> tuple[Counter[Source], Counter[Source]]:
    """Return how much each source has told, and how many rows it has."""
    told: Counter[Source] = Counter()
    number: Counter[Source] = Counter()
    for row in rows:
        told[row.source] += row.count
        number[row.source] += 1
    return told, number
