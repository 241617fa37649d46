"""What the view of a run shows (ranks in trouble first, progress, loss), and what each key changes. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING

from mslaunch.errors import MslaunchError
from mslaunch.metrics.alerts import RANK_RULES, sleeps
from mslaunch.metrics.progress import Extent, find_extent, progress_words, seconds_silent, step_time_of
from mslaunch.metrics.rows import Number, Source
from mslaunch.metrics.series import STEP_NAMES, STEPS_SEEN, Series, SeriesTable, last_step_came, step_of
from mslaunch.ranges import parse_ranges

if TYPE_CHECKING:
    from mslaunch.run.record import RankRecord, RunRecord


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    extent: Extent | None = None  # how much is done, and of how much


def make_progress(
    last: Mapping[str, Number], series: Mapping[str, Series], now: float | None = None
) -> JobProgress | None:
    """Return how far a rank is; None where it has printed neither step nor epoch. `now`: while it runs."""
    if not last.keys() & {*STEP_NAMES, "epoch"}:
        return None
    values, came = _with_step_time(last, series), last_step_came(series)
    age = None if now is None or came is None else now - came
    return JobProgress(tuple(progress_words(values, age)), find_extent(values))


def _with_step_time(last: Mapping[str, Number], series: Mapping[str, Series]) -> dict[str, Number]:
    """Return a rank's last numbers, with the step time as the mean of some."""
    measured = step_time_of(series)
    return dict(last) if measured is None else {**last, "step_time": measured}


TROUBLE = ("failed", "suspended", "silent", "nan", "slow")  # what may be wrong with a rank, the worst first
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
    against: float | None = None  # its step time as a multiple of the median of all ranks
    cpu: Number | None = None
    cpu_wait: Number | None = None
    memory: Number | None = None
    device: Number | None = None  # utilisation of its device in percent


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
    rate: Number | None = None  # the last learning rate of the rank


@dataclass(frozen=True, slots=True)
class Happened:
    """What events.jsonl tells beside the record."""

    notes: tuple[TimedNote, ...] = ()
    in_init: frozenset[int] = frozenset()  # ranks that have called init() and have not returned from it
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
    values = {}
    for number, source in sources.items():
        last = {**table.last(source), STEPS_SEEN: table.steps_seen(source)}
        values[number] = _with_step_time(last, table.of(source))
    peers = _medians([values[rank.rank] for rank in record.ranks if rank.state == "running"])
    rows = []
    for rank in record.ranks:
        source, own, state = sources[rank.rank], values[rank.rank], str(rank.state)
        if state == "running" and rank.rank in happened.in_init:
            state = "in init"
        elif state == "running":
            series = table.of(source)
            silent = seconds_silent(series, peers.get("step_time") or step_time_of(series), now) is not None
            state = _trouble(own, peers, silent) or state
        device = table.last(Source(source.attempt, None, rank.host, rank.device_id))
        rows.append(_row(rank, state, own, peers, device))
    return tuple(sorted(rows, key=lambda row: (trouble_of(row.state), row.rank)))


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
    rank: RankRecord, state: str, own: dict[str, Number], peers: Mapping[str, float], device: Mapping[str, Number]
) -> RankRow:
    step_time, usual = own.get("step_time"), peers.get("step_time")
    return RankRow(
        rank.rank,
        rank.host,
        state,
        step_of(own),
        own.get("loss"),
        step_time,
        against=step_time / usual if step_time is not None and usual else None,
        cpu=own.get("cpu"),
        cpu_wait=None if sleeps(own) else own.get("cpu_wait"),
        memory=own.get("memory"),
        device=None if rank.device_id is None else device.get("utilisation"),
    )


def _trouble(own: Mapping[str, Number], peers: Mapping[str, float], is_silent: bool) -> str | None:
    """Return the worst that is wrong with a rank now; alerts wait until it lasts, a screen need not."""
    troubles = {STATES[rule.kind] for rule in RANK_RULES if rule.kind in STATES and rule.holds(own, peers)}
    troubles |= {"silent"} if is_silent else set()
    troubles |= set() if math.isfinite(own.get("loss", 0)) else {"nan"}
    return next((name for name in TROUBLE if name in troubles), None)


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


PANES = {"l": "log", "s": "stacks", "v": "verdict", "n": "notes", "?": "help"}
"""What takes the whole screen, by its key; the same key again goes back."""
FROM_THE_END = ("log", "notes")  # panes that show their last lines first
QUESTIONS = {
    "stop": ("Stop the job? y: yes, any other key: no", {"y": "stop", "Y": "stop"}),
    "quit": (
        "The job is running. s: stop it, f: follow it in plain lines, any other key: stay",
        {"s": "stop", "f": "quit"},
    ),
}
"""What is asked before something is done: the words, and the action of each key."""
_LINE = {"up": -1, "k": -1, "down": 1, "j": 1}
_PAGE = {"page-up": -1, "page-down": 1}
_EDGE = {"home": 0, "g": 0, "end": -1, "G": -1}
_RANKS = re.compile(r"[\d,\s-]+")
LONGEST_FILTER = 60
LONGEST_NUMBER = 7


@dataclass(frozen=True, slots=True)
class Choices:
    """What is shown of a run."""

    chosen: int | None = None
    pane: str = ""
    scroll: int = 0  # lines that the pane is away from where it begins
    filter: str = ""
    is_typing: bool = False  # whether keys go to the filter
    number: str = ""  # the digits of a rank that were typed so far
    question: str = ""
    message: str = ""
    stacks: tuple[str, ...] = ()


Pressed = tuple[Choices, str | None]  # what is shown after a key, and what is to be done


@dataclass(frozen=True, slots=True)
class Room:
    """How many lines the present pane or table has on the screen, and how many there are to show."""

    shown: int = 10
    lines: int = 0


def visible_rows(overview: Overview, pattern: str) -> Sequence[RankRow]:
    """Return the rows that a filter leaves: ranks such as 0-7,12, or a part of a state or of a host's name."""
    if not pattern:
        return overview.rows
    if _RANKS.fullmatch(pattern):
        try:
            ranks = set(parse_ranges(pattern, "filter"))
        except MslaunchError:  # half typed
            return overview.rows
        return [row for row in overview.rows if row.rank in ranks]
    return [row for row in overview.rows if pattern in row.state or pattern in row.host]


def chosen_rank(overview: Overview, now: Choices) -> int | None:
    """Return the rank that is marked: the chosen one while the filter leaves it, else the first."""
    rows = visible_rows(overview, now.filter)
    return now.chosen if any(row.rank == now.chosen for row in rows) else first_of(rows)


def press(now: Choices, key: str, overview: Overview, room: Room, asks_to_quit: bool) -> Pressed:
    """Return what is shown after a key, and what is to be done: quit, stop, stacks, redraw or suspend."""
    if now.question:
        return replace(now, question=""), QUESTIONS[now.question][1].get(key)
    if now.is_typing:
        return _type(now, key), None
    now = replace(now, message="")
    if key.isdigit() and key.isascii():
        return _type_number(now, key, overview), None
    return _command(replace(now, number=""), key, overview, room, asks_to_quit)


def _command(now: Choices, key: str, overview: Overview, room: Room, asks_to_quit: bool) -> Pressed:
    action = None
    if key in ("redraw", "suspend"):
        action = key
    elif key in ("q", "Q") and asks_to_quit:
        now = replace(now, question="quit")
    elif key in ("q", "Q"):
        action = "quit"
    elif key == "x" and overview.is_over:
        now = replace(now, message="the run has ended: there is nothing to stop")
    elif key == "x":
        now = replace(now, question="stop")
    elif key == "/":
        now = replace(now, is_typing=True, pane="")
    elif key == "escape":
        now = replace(now, pane="", scroll=0, filter=now.filter if now.pane else "")
    elif now.pane and PANES.get(key) == now.pane:
        now = replace(now, pane="", scroll=0)
    elif key in PANES:
        now = replace(now, pane=PANES[key], scroll=0)
        action = "stacks" if now.pane == "stacks" else None
    else:
        now = _move(now, key, overview, room)
    return now, action


def _type(now: Choices, key: str) -> Choices:
    if key == "enter":
        return replace(now, is_typing=False)
    if key == "escape":
        return replace(now, is_typing=False, filter="")
    if key == "clear":
        return replace(now, filter="")
    if key == "backspace":
        return replace(now, filter=now.filter[:-1])
    return replace(now, filter=(now.filter + key)[:LONGEST_FILTER]) if len(key) == 1 else now


def _type_number(now: Choices, key: str, overview: Overview) -> Choices:
    """Choose the rank that the digits name; where there is none, the digit begins another number."""
    ranks = {row.rank for row in overview.rows}
    for number in ((now.number + key)[:LONGEST_NUMBER], key):
        if int(number) in ranks:
            return replace(now, number=number, chosen=int(number), scroll=0)
    return replace(now, number="", message=f"there is no rank {now.number}{key}")


def _move(now: Choices, key: str, overview: Overview, room: Room) -> Choices:
    if now.pane:
        return _scroll(now, key, room)
    ranks = [row.rank for row in visible_rows(overview, now.filter)]
    marked = chosen_rank(overview, now)
    if marked is None or key not in {*_LINE, *_PAGE, *_EDGE}:
        return now
    if key in _EDGE:
        return replace(now, chosen=ranks[_EDGE[key]])
    at = ranks.index(marked) + _LINE.get(key, 0) + _PAGE.get(key, 0) * max(1, room.shown - 1)
    return replace(now, chosen=ranks[max(0, min(at, len(ranks) - 1))])


def _scroll(now: Choices, key: str, room: Room) -> Choices:
    most = max(0, room.lines - room.shown)
    down = -1 if now.pane in FROM_THE_END else 1
    if key in _EDGE:
        is_start = (_EDGE[key] == 0) == (down == 1)
        return replace(now, scroll=0 if is_start else most)
    lines = _LINE.get(key, 0) + _PAGE.get(key, 0) * max(1, room.shown - 1)
    return replace(now, scroll=max(0, min(now.scroll + down * lines, most)))
