"""What the person who looks at a run has chosen, and what each key changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mslaunch.cli.watch.model import Overview, RankRow, first_of
from mslaunch.errors import MslaunchError
from mslaunch.ranges import parse_ranges

PANES = {"l": "log", "s": "stacks", "v": "verdict", "n": "notes", "?": "help"}
"""What takes the whole screen, by its key; the same key again goes back."""
FROM_THE_END = ("log", "notes")
"""Panes that show their last lines first."""
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
    scroll: int = 0
    """Lines that the pane is away from where it begins."""
    filter: str = ""
    is_typing: bool = False
    """Whether keys go to the filter."""
    number: str = ""
    """The digits of a rank that were typed so far."""
    question: str = ""
    message: str = ""
    stacks: tuple[str, ...] = ()


Pressed = tuple[Choices, str | None]
"""What is shown after a key, and what is to be done."""


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
    now = replace(now, number="")
    if key == "x" and overview.is_over:
        return replace(now, message="the run has ended: there is nothing to stop"), None
    if action := _KEYS.get(key):
        return action(now, key, asks_to_quit)
    return _move(now, key, overview, room), None


def _quit(now: Choices, _key: str, asks_to_quit: bool) -> Pressed:
    return (replace(now, question="quit"), None) if asks_to_quit else (now, "quit")


def _ask_to_stop(now: Choices, _key: str, _asks: bool) -> Pressed:
    return replace(now, question="stop"), None


def _begin_filter(now: Choices, _key: str, _asks: bool) -> Pressed:
    return replace(now, is_typing=True, pane=""), None


def _go_back(now: Choices, _key: str, _asks: bool) -> Pressed:
    return replace(now, pane="", scroll=0, filter=now.filter if now.pane else ""), None


def _act(now: Choices, key: str, _asks: bool) -> Pressed:
    return now, key


def _toggle(now: Choices, key: str, _asks: bool) -> Pressed:
    pane = PANES[key]
    if now.pane == pane:
        return replace(now, pane="", scroll=0), None
    return replace(now, pane=pane, scroll=0), "stacks" if pane == "stacks" else None


_KEYS: dict[str, Callable[[Choices, str, bool], Pressed]] = {
    "q": _quit,
    "Q": _quit,
    "x": _ask_to_stop,
    "/": _begin_filter,
    "escape": _go_back,
    "redraw": _act,
    "suspend": _act,
    **dict.fromkeys(PANES, _toggle),
}


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
