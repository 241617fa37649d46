"""What the view of a run shows: each rank with its numbers, those in trouble first; progress, loss, log. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from mslaunch.metrics.alerts import RANK_RULES, sleeps
from mslaunch.metrics.progress import Extent, find_extent, progress_words, seconds_silent, step_time_of
from mslaunch.metrics.rows import Number, Source
from mslaunch.metrics.series import STEP_NAMES, STEPS_SEEN, Series, SeriesTable, last_step_came, step_of

if TYPE_CHECKING:
    from mslaunch.run.record import RankRecord, RunRecord


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    extent: Extent | None = None
    """How much is done, and of how much."""


def make_progress(
    last: Mapping[str, Number], series: Mapping[str, Series], now: float | None = None
) -> JobProgress | None:
    """Return how far a rank is; None where it has printed neither step nor epoch. `now`: while it runs."""
    if not last.keys() & {*STEP_NAMES, "epoch"}:
        return None
    measured = step_time_of(series)
    values = {**last, **({} if measured is None else {"step_time": measured})}
    came = last_step_came(series)
    age = None if now is None or came is None else now - came
    return JobProgress(tuple(progress_words(values, age)), find_extent(values))


TROUBLE = ("failed", "suspended", "silent", "nan", "slow")
"""What may be wrong with a rank, the worst first."""
DEMANDING = frozenset({"failed", "suspended", "silent"})
"""What makes a rank the chosen one where nobody has chosen another."""
STATES = {"stopped": "suspended", "starved": "slow", "slow": "slow"}
"""The rules of alerts that show in a rank's state; `stopped` means that mslaunch has ended it."""
COMPARED = ("step_time", "cpu_wait", "cpu")
MOST_POINTS = 2000  # of a curve


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: how it stands, and its last numbers."""

    rank: int
    host: str
    state: str
    step: Number | None = None
    loss: Number | None = None
    step_time: Number | None = None
    against: float | None = None
    """Its step time as a multiple of the median of all ranks."""
    cpu: Number | None = None
    cpu_wait: Number | None = None
    memory: Number | None = None
    device: Number | None = None
    """Utilisation of its device in percent."""


@dataclass(frozen=True, slots=True)
class TimedNote:
    """What the launcher tells people about the run, and when."""

    time: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A number of a rank over time."""

    rank: int
    places: Sequence[float]
    values: Sequence[float]
    rate: Number | None = None
    """The last learning rate of the rank."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What events.jsonl tells beside the record."""

    notes: tuple[TimedNote, ...] = ()
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

    @property
    def is_over(self) -> bool:
        """Whether nothing is left that could be stopped; a run whose launcher is lost may have left ranks."""
        return self.record.state in ("succeeded", "failed", "stopped")


def make_rows(record: RunRecord, table: SeriesTable, happened: Happened, now: float) -> tuple[RankRow, ...]:
    """Return a row for each rank, those in trouble first."""
    sources = {rank.rank: Source(record.attempt_of(rank.group), rank.rank) for rank in record.ranks}
    series = {rank: table.of(source) for rank, source in sources.items()}
    values = {rank: _values(table, source) for rank, source in sources.items()}
    peers = _medians([values[rank.rank] for rank in record.ranks if rank.state == "running"])
    rows = []
    for rank in record.ranks:
        own, state = values[rank.rank], _state(rank, happened)
        if state == "running":
            state = _trouble(own, peers, _is_silent(series[rank.rank], peers, now)) or state
        rows.append(_row(rank, state, own, peers, _device(rank, sources[rank.rank].attempt, table)))
    return tuple(sorted(rows, key=lambda row: (trouble_of(row.state), row.rank)))


def _values(table: SeriesTable, source: Source) -> dict[str, Number]:
    """Return a rank's last numbers, with the step time as the mean of some, and how many steps were seen."""
    values = {**table.last(source), STEPS_SEEN: table.steps_seen(source)}
    measured = step_time_of(table.of(source))
    if measured is not None:
        values["step_time"] = measured
    return values


def _medians(sources: Sequence[Mapping[str, Number]]) -> dict[str, float]:
    """Return the medians that ranks are compared with; of two numbers the lower one, of one number none."""
    numbers = {name: [own[name] for own in sources if math.isfinite(own.get(name, math.nan))] for name in COMPARED}
    return {name: median_low(some) for name, some in numbers.items() if len(some) > 1}


def first_of(rows: Sequence[RankRow]) -> int | None:
    """Return the rank that is chosen where nobody has chosen one: one that demands it, else the lowest."""
    if rows and rows[0].state in DEMANDING:
        return rows[0].rank
    return min((row.rank for row in rows), default=None)


def trouble_of(state: str) -> int:
    """Return a state's place in the order of rows."""
    return TROUBLE.index(state) if state in TROUBLE else len(TROUBLE)


def _row(
    rank: RankRecord, state: str, own: dict[str, Number], peers: Mapping[str, float], device: Number | None
) -> RankRow:
    step_time, usual = own.get("step_time"), peers.get("step_time")
    against = step_time / usual if step_time is not None and usual else None
    cpu, memory = own.get("cpu"), own.get("memory")
    wait = None if sleeps(own) else own.get("cpu_wait")
    return RankRow(
        rank.rank, rank.host, state, step_of(own), own.get("loss"), step_time, against, cpu, wait, memory, device
    )


def _device(rank: RankRecord, attempt: int, table: SeriesTable) -> Number | None:
    if rank.device_id is None:
        return None
    return table.last(Source(attempt, None, rank.host, rank.device_id)).get("utilisation")


def _state(rank: RankRecord, happened: Happened) -> str:
    return "in init" if rank.state == "running" and rank.rank in happened.in_init else rank.state


def _trouble(own: Mapping[str, Number], peers: Mapping[str, float], is_silent: bool) -> str | None:
    """Return the worst that is wrong with a rank now; alerts wait until it lasts, a screen need not."""
    troubles = {STATES[rule.kind] for rule in RANK_RULES if rule.kind in STATES and rule.holds(own, peers)}
    troubles |= {"silent"} if is_silent else set()
    troubles |= set() if math.isfinite(own.get("loss", 0)) else {"nan"}
    return next((name for name in TROUBLE if name in troubles), None)


def _is_silent(series: Mapping[str, Series], peers: Mapping[str, float], now: float) -> bool:
    """Tell whether a rank that has printed steps has printed none for long."""
    return seconds_silent(series, peers.get("step_time") or step_time_of(series), now) is not None


def find_curve(record: RunRecord, table: SeriesTable, chosen: int | None) -> Curve | None:
    """Return the loss of the chosen rank, else of the first rank that prints one."""
    attempt = record.attempt_of()
    for rank in ([] if chosen is None else [chosen]) + [rank_record.rank for rank_record in record.ranks]:
        source = Source(attempt, rank)
        if series := table.of(source).get("loss"):
            every = -(-len(series) // MOST_POINTS)
            first = (len(series) - 1) % every  # the last point is always one of them
            return Curve(rank, series.time[first::every], series.value[first::every], table.last(source).get("lr"))
    return None


def find_progress(record: RunRecord, table: SeriesTable, now: float) -> JobProgress | None:
    """Return how far the first rank is that prints its steps."""
    at = now if record.state == "running" else None
    for rank in record.ranks:
        source = Source(record.attempt_of(rank.group), rank.rank)
        if table.of(source) and (progress := make_progress(table.last(source), table.of(source), at)):
            return progress
    return None


def count_states(rows: Iterable[RankRow]) -> Mapping[str, int]:
    """Return how many ranks stand how, the worst first."""
    counts = Counter(row.state for row in rows)
    return dict(sorted(counts.items(), key=lambda item: (trouble_of(item[0]), item[0])))
