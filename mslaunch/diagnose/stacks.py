"""Stacks of ranks: read from what faulthandler wrote, and grouped by being the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mslaunch import layout
from mslaunch.words import named_ranks

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
OUR_FRAMES = ("/mslaunch/worker/", f"{layout.ZIP}/", f"/{layout.BOOT}", "<frozen runpy>")
_LIBRARY = ("/site-packages/", "/lib/python", "<frozen ")


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: str
    function: str

    @property
    def is_library(self) -> bool:
        return any(mark in self.file for mark in _LIBRARY)

    def words(self) -> str:
        """Say where this is, short: the path below code/ or site-packages/."""
        name = self.file
        for mark in (f"/{layout.CODE}/", "/site-packages/"):
            name = name.rpartition(mark)[2]
        return f"{name}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that stand at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]

    def words(self) -> str:
        """Say who stands where: the innermost frame, and the user's own line that led there."""
        who = named_ranks(self.ranks)
        if not self.frames:
            return f"{who}: no Python stack could be taken"
        innermost = self.frames[0]
        own = next((frame for frame in self.frames if not frame.is_library), innermost)
        where = own.words() if own is innermost else f"{own.words()}, inside {innermost.words()}"
        return f"{who}: {where}"


def parse(text: str) -> tuple[Frame, ...]:
    """Return the main thread's frames, innermost first, of the last dump in a stack file; our own are left out."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (found := _FRAME.match(line)):
            threads[-1].append(Frame(found[1], found[2], found[3]))
    if not threads:
        return ()
    # faulthandler writes the main thread last: it was the first to be made.
    return tuple(frame for frame in threads[-1] if not any(mark in frame.file for mark in OUR_FRAMES))


def group(stacks: Mapping[int, Sequence[Frame]]) -> tuple[Group, ...]:
    """Put ranks with the same stack together, the largest group first."""
    groups: dict[tuple[Frame, ...], list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(tuple(stacks[rank]), []).append(rank)
    made = [Group(tuple(ranks), frames) for frames, ranks in groups.items()]
    return tuple(sorted(made, key=lambda item: (-len(item.ranks), item.ranks)))


def odd_ranks(groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the ranks that do not stand where most do; without a majority, those that are not inside MindSpore."""
    total = sum(len(item.ranks) for item in groups)
    odd = groups[1:]
    if len(groups) > 1 and len(groups[0].ranks) * 2 <= total:
        odd = [item for item in groups if not any("/mindspore/" in frame.file for frame in item.frames)]
        odd = odd if len(odd) < len(groups) else []
    return tuple(sorted(rank for item in odd for rank in item.ranks))
