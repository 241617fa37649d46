"""What the view of a run shows: each rank with its numbers, those in trouble first; progress, loss, log. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from mslaunch.cli.watch.progress import JobProgress, make_progress, steps_per_second
from mslaunch.metrics.rows import Number, Source
from mslaunch.metrics.series import Series, SeriesTable, step_of

if TYPE_CHECKING:
    from mslaunch.api import RankRecord, RunRecord

TROUBLE = ("failed", "suspended", "silent", "nan", "slow")
"""What may be wrong with a rank, the worst first."""
DEMANDING = frozenset({"failed", "suspended", "silent"})
"""What makes a rank the chosen one where nobody has chosen another."""
SLOWER = 1.5  # times the median step time
WAITS_MORE = 0.25  # share of the time that a rank waits for a core, above the median's
SILENT_SECONDS = 30.0
SILENT_STEPS = 10
LAST_STEPS = 5  # whose mean is a rank's step time
MOST_POINTS = 2000  # of a curve


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: how it stands, and its last numbers."""

    rank: int
    host: str
    state: str
    step: Number | None = None
    loss: Number | None = None
    step_time: float | None = None
    against: float | None = None
    """Its step time as a multiple of the median of all ranks."""
    cpu: Number | None = None
    cpu_wait: Number | None = None
    memory: Number | None = None
    device: Number | None = None
    """Utilisation of its device in percent."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the launcher tells people about the run, and when."""

    time: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A number of a rank over time."""

    rank: int
    places: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Happened:
    """What events.jsonl tells beside the record."""

    notes: tuple[Note, ...] = ()
    in_init: frozenset[int] = frozenset()
    """Ranks that have called init() and have not returned from it."""
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the view can show at one time."""

    name: str
    record: RunRecord
    rows: tuple[RankRow, ...]
    counts: Mapping[str, int]
    progress: JobProgress | None = None
    curve: Curve | None = None
    happened: Happened = Happened()
    queue_job: str | None = None
    log_rank: int | None = None
    log_lines: Sequence[str] = ()
    verdict: Sequence[str] = ()


def make_rows(record: RunRecord, table: SeriesTable, happened: Happened, now: float) -> tuple[RankRow, ...]:
    """Return a row for each rank, those in trouble first."""
    attempt = len(record.attempts)
    sources = {rank.rank: Source(attempt, rank.rank) for rank in record.ranks}
    series = {rank: table.of(source) for rank, source in sources.items()}
    last = {rank: table.last(source) for rank, source in sources.items()}
    times = {rank: _step_time(some) for rank, some in series.items()}
    usual = _median(times.values())
    usual_wait = _median(values.get("cpu_wait") for values in last.values())
    rows = []
    for rank in record.ranks:
        values, step_time = last[rank.rank], times[rank.rank]
        against = step_time / usual if step_time is not None and usual else None
        state = _state(record, rank, happened)
        if state == "running":
            waits_more = values.get("cpu_wait", 0) - (usual_wait or 0) >= WAITS_MORE
            is_slow = len(sources) > 1 and (waits_more or (against or 0) >= SLOWER)
            silent = _is_silent(series[rank.rank], usual, now)
            state = _trouble(values, silent, is_slow) or state
        rows.append(_row(rank, state, values, step_time, against, _device(rank, attempt, table)))
    return tuple(sorted(rows, key=lambda row: (trouble_of(row.state), row.rank)))


def first_of(rows: Sequence[RankRow]) -> int | None:
    """Return the rank that is chosen where nobody has chosen one: one that demands it, else the lowest."""
    if rows and rows[0].state in DEMANDING:
        return rows[0].rank
    return min((row.rank for row in rows), default=None)


def trouble_of(state: str) -> int:
    """Return a state's place in the order of rows."""
    return TROUBLE.index(state) if state in TROUBLE else len(TROUBLE)


def _row(
    rank: RankRecord,
    state: str,
    values: Mapping[str, Number],
    step_time: float | None,
    against: float | None,
    device: Number | None,
) -> RankRow:
    cpu, wait, memory = (values.get(name) for name in ("cpu", "cpu_wait", "memory"))
    step, loss = step_of(dict(values)), values.get("loss")
    return RankRow(rank.rank, rank.host, state, step, loss, step_time, against, cpu, wait, memory, device)


def _device(rank: RankRecord, attempt: int, table: SeriesTable) -> Number | None:
    if rank.device_id is None:
        return None
    return table.last(Source(attempt, None, rank.host, rank.device_id)).get("utilisation")


def _state(record: RunRecord, rank: RankRecord, happened: Happened) -> str:
    if record.state == "lost" and rank.state == "running":
        return "gone"
    return "in init" if rank.state == "running" and rank.rank in happened.in_init else rank.state


def _trouble(values: Mapping[str, Number], is_silent: bool, is_slow: bool) -> str | None:
    found = {
        "suspended": values.get("stopped") == 1,
        "silent": is_silent,
        "nan": not math.isfinite(values.get("loss", 0)),
        "slow": is_slow,
    }
    return next((name for name in TROUBLE if found.get(name)), None)


def _step_time(series: Mapping[str, Series]) -> float | None:
    """Return the mean of a rank's last step times, measured by itself or by when its steps came."""
    if told := series.get("step_time"):
        some = [value for value in told.value[-LAST_STEPS:] if 0 < value < math.inf]
        return sum(some) / len(some) if some else None
    rate = steps_per_second(series)
    return 1 / rate if rate else None


def _is_silent(series: Mapping[str, Series], usual: float | None, now: float) -> bool:
    """Tell whether a rank that has printed steps has printed none for long."""
    came = [series[name].time[-1] for name in ("step", "total_step", "loss") if name in series]
    return bool(came) and now - max(came) > max(SILENT_SECONDS, SILENT_STEPS * (usual or 0))


def _median(numbers: Iterable[Number | None]) -> float | None:
    known = [number for number in numbers if number is not None and math.isfinite(number)]
    return median(known) if known else None


def find_curve(record: RunRecord, table: SeriesTable, chosen: int | None) -> Curve | None:
    """Return the loss of the chosen rank, else of the first rank that prints one."""
    attempt = len(record.attempts)
    for rank in ([] if chosen is None else [chosen]) + [one.rank for one in record.ranks]:
        if series := table.of(Source(attempt, rank)).get("loss"):
            every = -(-len(series) // MOST_POINTS)
            first = (len(series) - 1) % every  # the last point is always one of them
            return Curve(rank, series.time[first::every], series.value[first::every])
    return None


def find_progress(record: RunRecord, table: SeriesTable) -> JobProgress | None:
    """Return how far the first rank is that prints its steps."""
    for rank in record.ranks:
        source = Source(len(record.attempts), rank.rank)
        if table.of(source) and (found := make_progress(table.last(source), table.of(source))):
            return found
    return None


def count_states(rows: Iterable[RankRow]) -> Mapping[str, int]:
    """Return how many ranks stand how, the worst first."""
    counts = Counter(row.state for row in rows)
    return dict(sorted(counts.items(), key=lambda item: (trouble_of(item[0]), item[0])))
