"""The screen of a run as lines of text, for a terminal of any size. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise

from mslaunch.cli.console.console import fit_parts
from mslaunch.cli.console.describe import duration
from mslaunch.cli.watch.model import (
    FROM_THE_END,
    PANES,
    QUESTIONS,
    TROUBLE,
    Choices,
    Overview,
    RankRow,
    Room,
    TimedNote,
    chosen_rank,
    visible_rows,
)
from mslaunch.metrics.progress import TIME_LEFT
from mslaunch.metrics.rows import Number
from mslaunch.text import (
    byte_count,
    count_words,
    counted,
    display_width,
    plain,
    plain_output,
    seconds_words,
    shorten,
    shorten_middle,
    wrap,
)

LEAST = 12  # columns that names have in the narrowest table
_TO_SEPARATOR = re.compile(r".*[-._]")


def name_variants(hosts: Collection[str]) -> Iterator[dict[str, str]]:
    """Yield what hosts can be called, from their whole names to the shortest ones."""
    names = {host: plain(host) for host in hosts}
    yield names
    parts = {host: name.partition(".") for host, name in names.items()}
    has_one_domain = len({domain for _, _, domain in parts.values()}) == 1
    if has_one_domain and not any(head.isdigit() for head, _, _ in parts.values()):  # addresses stay as they are
        names = {host: head for host, (head, _, _) in parts.items()}
    yield names
    start = _common_prefix(names)
    if start > 1:
        names = {host: f"…{name[start:]}" for host, name in names.items()}
    yield names
    yield {host: shorten_middle(name, LEAST) for host, name in names.items()}


def _common_prefix(names: dict[str, str]) -> int:
    """Return how long the beginning is that all names have, up to a separator."""
    prefix = _TO_SEPARATOR.match(os.path.commonprefix(list(names.values())))  # noqa: RUF071 -- characters, not parts of a path
    return prefix.end() if prefix else 0


GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    width: int
    text: Callable[[RankRow], str]
    shows: str = ""  # the number of a row that it shows; without one in any row, it is left out
    rank: int = 0  # the higher, the sooner it is left out where there is no room
    is_left: bool = False


def number_text(value: Number | None) -> str:
    """A number in few characters."""
    if value is None:
        return ""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.4g}"


def _finite(value: Number | None, text: Callable[[float], str]) -> str:
    return "" if value is None or not math.isfinite(value) else text(value)


def _memory(value: Number | None) -> str:
    return "" if value is None or not 0 <= value < 1 << 60 else byte_count(int(value))


COLUMNS = (
    Column("RANK", 6, lambda row: str(row.rank)),
    Column("HOST", LEAST, lambda row: plain(row.host), rank=2, is_left=True),
    Column("STATE", 9, lambda row: row.state, is_left=True),
    Column("STEP", 9, lambda row: "" if row.step is None else count_words(row.step), "step"),
    Column("LOSS", 9, lambda row: number_text(row.loss), "loss"),
    Column("STEP TIME", 9, lambda row: _finite(row.step_time, seconds_words), "step_time"),
    Column("x MEDIAN", 8, lambda row: "" if row.against is None else f"{min(row.against, 9999):.2f}", "against", 3),
    Column("CPU", 5, lambda row: _finite(row.cpu, "{:.1f}".format), "cpu", 4),
    Column("WAIT", 5, lambda row: _finite(row.cpu_wait, "{:.0%}".format), "cpu_wait", 6),
    Column("MEMORY", 8, lambda row: _memory(row.memory), "memory", 5),
    Column("DEVICE", 6, lambda row: _finite(row.device, "{:.0f}%".format), "device", 1),
)


def choose_columns(rows: Sequence[RankRow], width: int) -> list[Column]:
    """Return the columns that have something to show and fit into a width."""
    hosts = {row.host for row in rows}
    columns = [
        column for column in COLUMNS if not column.shows or any(getattr(row, column.shows) is not None for row in rows)
    ]
    if len(hosts) > 1:
        columns = _with_names(columns, hosts, width)
    else:
        columns = [column for column in columns if column.title != "HOST"]
    while len(columns) > 1 and _total(columns) > width:
        columns.remove(max(columns, key=lambda column: (column.rank, columns.index(column))))
    return columns


def _with_names(columns: list[Column], hosts: Collection[str], width: int) -> list[Column]:
    """Give names of hosts the room that is left: whole where they fit, else what tells them apart."""
    at = next(at for at, column in enumerate(columns) if column.title == "HOST")
    fitted = columns
    for names in name_variants(hosts):
        widest = max(len(columns[at].title), *map(display_width, names.values()))
        text = partial(_name, names)
        fitted = [*columns[:at], replace(columns[at], width=widest, text=text), *columns[at + 1 :]]
        if _total(fitted) <= width:
            break
    return fitted


def _name(names: Mapping[str, str], row: RankRow) -> str:
    return names[row.host]


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width + GAP for column in columns) - GAP


def heading(columns: Sequence[Column]) -> str:
    return _line(columns, [column.title for column in columns])


def row_text(columns: Sequence[Column], row: RankRow) -> str:
    return _line(columns, [column.text(row) for column in columns])


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    placed = []
    for column, text in zip(columns, cells, strict=True):
        cell = shorten(text, column.width)
        space = " " * (column.width - display_width(cell))
        placed.append(cell + space if column.is_left else space + cell)
    return (" " * GAP).join(placed)


_FIRST = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a braille character's dots: by column, from top to bottom."""
ACROSS, DOWN = len(_DOTS), len(_DOTS[0])
NO_NUMBER = "x"  # stands at the foot where a value is not finite


def draw_curve(places: Sequence[float], values: Sequence[float], columns: int, lines: int) -> list[str]:
    """Return the curve of the values over their places; no lines where there are not two finite ones."""
    points = [(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(x)]
    if sum(math.isfinite(y) for _, y in points) < 2 or columns < 1 or lines < 1:
        return []
    placed = _place(points, columns * ACROSS)
    gaps = {at for at, some in placed.items() if not all(map(math.isfinite, some))}
    cells = [[0] * columns for _ in range(lines)]
    for at, low, high in _strokes(_heights(placed, lines * DOWN), gaps):
        for height in range(low, high + 1):
            row = lines * DOWN - 1 - height
            cells[row // DOWN][at // ACROSS] |= _DOTS[at % ACROSS][row % DOWN]
    drawn = [[chr(_FIRST + cell) for cell in line] for line in cells]
    for at in gaps:
        drawn[-1][at // ACROSS] = NO_NUMBER
    return ["".join(line) for line in drawn]


def _place(points: Sequence[tuple[float, float]], width: int) -> dict[int, list[float]]:
    first = min(x for x, _ in points)
    span = max(x for x, _ in points) - first
    columns: dict[int, list[float]] = {}
    for x, y in points:
        columns.setdefault(int((x - first) / span * (width - 1)) if span > 0 else 0, []).append(y)
    return dict(sorted(columns.items()))


def _heights(placed: Mapping[int, Sequence[float]], height: int) -> dict[int, int]:
    """Return the height of the mean of the finite values in each column of dots."""
    finite = {at: [value for value in some if math.isfinite(value)] for at, some in placed.items()}
    means = {at: math.fsum(some) / len(some) for at, some in finite.items() if some}
    least = min(means.values())
    span = max(means.values()) - least
    if not 0 < span < math.inf:
        return dict.fromkeys(means, 0)
    return {at: round((mean - least) / span * (height - 1)) for at, mean in means.items()}


def _strokes(heights: dict[int, int], gaps: Collection[int]) -> list[tuple[int, int, int]]:
    """Return the vertical strokes that join one point with the next: column, lowest and highest dot.

    Points with a gap between them are not joined.
    """
    strokes = [(at, height, height) for at, height in heights.items()]
    for (left, before), (right, after) in pairwise(heights.items()):
        if any(left < gap < right for gap in gaps):
            continue
        for at in range(left + 1, right + 1):
            ends = [before + round((after - before) * (x - left) / (right - left)) for x in (at - 1, at)]
            strokes.append((at, min(ends), max(ends)))
    return strokes


_KEYS = "q quit  ↑↓ rank  l log  s stacks  n notes  v verdict  / filter  x stop  ? help"
_KEYS_AFTER_THE_END = "q quit  ↑↓ rank  l log  n notes  v verdict  / filter  ? help"
HELP = (
    *"""Keys
  up, down, j, k        choose a rank
  page up, page down    a page of ranks
  home, end, g, G       the first, the last rank
  0-9                   the rank with that number
  l                     its log on the whole screen
  s                     stacks of all ranks, of a job that runs
  n                     all notes
  v                     why the run failed
  /                     filter: ranks (0-7,12), or part of a state or host
  x                     stop the job, after a question
  Esc                   back to all ranks; there: no filter
  Ctrl-L                draw the screen again
  Ctrl-Z                suspend
  q                     quit
""".splitlines(),
    "",
    "Ranks in trouble come first: failed; suspended (SIGSTOP); silent: no step for 30 s, or for 10 steps where that is "
    "longer; nan: its loss is no number; slow: its step time is 1.5 times the median or more, or its threads wait for "
    "a core much longer than those of the median rank.",
)


BOLD, REVERSE, RED, YELLOW, GREEN, CYAN, FAINT, NORMAL = (f"\x1b[{n}m" for n in (1, 7, 31, 33, 32, 36, 2, 0))
LONGEST_LINE = 4096
LABEL = 10  # columns of the numbers beside the curve
BAR, SHORTEST_BAR = 20, 5
LOGARITHMIC = 20  # a loss whose greatest value is so many times its least is drawn on a logarithmic scale
_RUN_COLOURS = {"failed": RED, "lost": RED, "succeeded": GREEN, "stopped": YELLOW}
_STATE_COLOURS = {
    "failed": RED,
    "gone": RED,
    "ok": GREEN,
    "waiting": FAINT,
    "not started": FAINT,
    **dict.fromkeys(TROUBLE[1:], YELLOW),
}


def draw(overview: Overview, now: Choices, columns: int, lines: int, clock: datetime) -> tuple[list[str], Room]:
    """Return as many lines as the terminal has, and how much of what can be moved is shown."""
    top = [_title(overview, columns, clock)]
    body = max(0, lines - len(top) - 1)
    middle, room = _pane(overview, now, columns, body) if now.pane else _panes(overview, now, columns, body)
    screen = [*top, *middle[:body], *[""] * (body - len(middle)), _footer(overview, now, columns)]
    return [shorten(line, columns) for line in screen][:lines], room


def _title(overview: Overview, columns: int, clock: datetime) -> str:
    record = overview.record
    state = "stopping" if overview.happened.is_stopping and record.state == "running" else record.state
    code = "" if record.exit_code is None else f", exit code {record.exit_code}"
    colour = _RUN_COLOURS.get(record.state, "")
    parts = [f"{state}{code}", duration(record, clock)]
    parts += [overview.queue_job] if overview.queue_job else []
    parts += [f"attempt {record.attempt_of() + 1}"] if record.attempts else []
    parts += [
        f"{counted(record.world_size, 'rank')}: " + ", ".join(f"{n} {name}" for name, n in overview.counts.items())
    ]
    text = plain(f" {overview.name}: {' | '.join(parts)}")
    return f"{REVERSE}{colour}{_filled(text, columns)}{NORMAL}"


def _footer(overview: Overview, now: Choices, columns: int) -> str:
    if now.question:
        return f"{REVERSE}{_filled(' ' + QUESTIONS[now.question][0], columns)}{NORMAL}"
    if now.is_typing:
        return f"{REVERSE}{_filled(f' /{plain(now.filter)}_  Enter: keep, Esc: no filter', columns)}{NORMAL}"
    if now.message:
        return f"{BOLD}{shorten(' ' + plain(now.message), columns)}{NORMAL}"
    number = f" rank {now.number}_ " if now.number else ""
    filtered = f" filter: {plain(now.filter)} (Esc: none) " if now.filter else ""
    keys = _KEYS_AFTER_THE_END if overview.is_over else _KEYS
    if now.pane:
        own_key = next(key for key, name in PANES.items() if name == now.pane)
        keys = f"Esc or {own_key}: back  arrows: move  q: quit"
    return f"{FAINT}{shorten(f'{number}{filtered} {keys}', columns)}{NORMAL}"


def _filled(text: str, columns: int) -> str:
    cut = shorten(text, columns)
    return cut + " " * (columns - display_width(cut))


def _rule(text: str, columns: int) -> str:
    title = shorten(f"── {text} ", columns)
    return f"{FAINT}{title}{'─' * (columns - display_width(title))}{NORMAL}"


def _panes(overview: Overview, now: Choices, columns: int, lines: int) -> tuple[list[str], Room]:
    """Progress, loss, ranks, the log or the verdict, and notes, each as high as there is room for."""
    is_small = lines < 28
    notes = [_note(note) for note in overview.happened.notes][-(2 if is_small else 4) :] if lines > 12 else []
    above = _progress(overview, columns) if lines > 6 else []
    if lines > 16:
        above += _curve(overview, columns, 4 if is_small else min(8, lines // 6))
    rows = visible_rows(overview, now.filter)
    left = lines - len(above) - len(notes)
    needed = len(rows) + 1
    height = left if left < 8 else min(needed, max(5, left - 6 if needed > left // 2 else needed, left * 3 // 5))
    table, where = _table(overview, rows, now, columns, height)
    below = _lower(overview, now, columns, left - len(table), where)
    return [*above, *table, *below, *notes], Room(max(0, height - 1), len(rows))


def _progress(overview: Overview, columns: int) -> list[str]:
    progress = overview.progress
    if progress is None:
        return []
    parts = [word for word in progress.words if not (overview.is_over and TIME_LEFT.search(word))]
    if progress.extent is None:
        return [" " + "  ".join(fit_parts(parts, columns - 1, "  "))]
    share = progress.extent.share
    percent = f"{100 * share:.1f} %{progress.extent.words}"
    text = "  ".join(fit_parts([percent, *parts], columns - 1, "  "))
    room = min(BAR, columns - display_width(text) - 3)
    if room < SHORTEST_BAR:
        return [f" {text}"]
    full = int(share * room)  # only a job that is done has a full bar
    return [f" {text}  {CYAN}{'█' * full}{FAINT}{'░' * (room - full)}{NORMAL}"]


def _curve(overview: Overview, columns: int, height: int) -> list[str]:
    curve = overview.curve
    if curve is None:
        return []
    finite = [value for value in curve.values if math.isfinite(value)]
    is_wide = bool(finite) and 0 < min(finite) * LOGARITHMIC < max(finite)
    values = [math.log(value) if value > 0 else math.nan for value in curve.values] if is_wide else curve.values
    drawn = draw_curve(curve.places, values, max(1, columns - LABEL - 1), height)
    if not drawn:
        return []
    labels = [number_text(max(finite)), *[""] * (height - 2), number_text(min(finite))]
    rate = "" if curve.rate is None else f", lr {number_text(curve.rate)}"
    remarks = [
        *(["logarithmic"] if is_wide else []),
        *([f"{NO_NUMBER}: not a number"] if NO_NUMBER in drawn[-1] else []),
    ]
    scale = f" ({', '.join(remarks)})" if remarks else ""
    title = _rule(f"loss of rank {curve.rank}: {number_text(curve.values[-1])}{rate}{scale}", columns)
    drawn[-1] = drawn[-1].replace(NO_NUMBER, f"{RED}{NO_NUMBER}{CYAN}")
    return [title, *(f"{label:>{LABEL}} {CYAN}{line}{NORMAL}" for label, line in zip(labels, drawn, strict=True))]


def _table(
    overview: Overview, rows: Sequence[RankRow], now: Choices, columns: int, height: int
) -> tuple[list[str], str]:
    """The rows around the chosen one, below their heading; and which rows these are, where they are not all."""
    chosen = choose_columns(overview.rows, columns - 1)
    room = max(0, height - 1)
    marked = chosen_rank(overview, now)
    at = next((index for index, row in enumerate(rows) if row.rank == marked), 0)
    is_free = now.chosen is None  # then the first rows are those that matter
    start = 0 if is_free and at < room else max(0, min(at - room // 2, len(rows) - room))
    visible = rows[start : start + room]
    where = f"{start + 1}-{start + len(visible)} of {len(rows)} ── " if len(rows) > len(visible) else ""
    if not rows and now.filter:
        return [shorten(f" No rank fits the filter {plain(now.filter)!r}.", columns)][:height], ""
    lines = [f"{BOLD} {heading(chosen)}{NORMAL}"]
    for row in visible:
        text = f" {row_text(chosen, row)}"
        colour = _STATE_COLOURS.get(row.state, "")
        style = f"{colour}{REVERSE}" if row.rank == marked else colour
        lines.append(f"{style}{_filled(text, columns) if row.rank == marked else text}{NORMAL if style else ''}")
    return lines[:height], where


def _lower(overview: Overview, now: Choices, columns: int, height: int, where: str) -> list[str]:
    """The verdict of a run that has failed, else the last lines of the chosen rank's log."""
    if height < 2:
        return []
    if overview.verdict and now.chosen is None:
        wrapped = _wrapped(overview.verdict, columns)
        return [_rule(f"{where}why it failed (v: all of it)", columns), *wrapped[: height - 1]]
    lines = overview.log_lines[-(height - 1) :]
    rank = chosen_rank(overview, now) if overview.log_rank is None else overview.log_rank
    return [_rule(f"{where}log of rank {rank}", columns), *(plain_output(line, LONGEST_LINE) for line in lines)]


def _pane(overview: Overview, now: Choices, columns: int, height: int) -> tuple[list[str], Room]:
    title, content = _content(overview, now)
    lines = _wrapped(content, columns)
    room = max(0, height - 1)
    if now.pane in FROM_THE_END:
        start = max(0, min(len(lines), max(room, len(lines) - now.scroll)) - room)
    else:
        start = max(0, min(now.scroll, len(lines) - room))
    visible = lines[start : start + room]
    where = f", lines {start + 1}-{start + len(visible)} of {len(lines)}" if len(lines) > len(visible) else ""
    return [_rule(title + where, columns), *visible], Room(room, len(lines))


def _wrapped(lines: Sequence[str], columns: int) -> list[str]:
    return [piece for line in lines for piece in wrap(plain_output(line, LONGEST_LINE), columns)]


def _content(overview: Overview, now: Choices) -> tuple[str, Sequence[str]]:
    if now.pane == "log":
        return f"log of rank {overview.log_rank}", overview.log_lines or ["It has printed nothing yet."]
    if now.pane == "stacks":
        return "stacks", now.stacks or ["Asking the ranks ..."]
    if now.pane == "notes":
        return "notes", [_note(note) for note in overview.happened.notes] or ["There are none."]
    if now.pane == "verdict":
        return "verdict", overview.verdict or ["No rank has failed."]
    return "help", HELP


def _note(note: TimedNote) -> str:
    try:
        when = datetime.fromtimestamp(note.time).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # of a file that somebody has changed
        when = "--:--:--"
    return f"{YELLOW}{when} {plain(note.text)}{NORMAL}"
