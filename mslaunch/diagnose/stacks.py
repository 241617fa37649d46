"""Stacks of ranks: read from what faulthandler wrote, and grouped by being the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mslaunch.shared import layout
from mslaunch.text import named_ranks

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
OUR_FRAMES = ("/mslaunch/worker/", f"{layout.ZIP}/", f"/{layout.BOOT}", "<frozen runpy>")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_LIBRARY = ("/site-packages/", "/lib/python", "<frozen ")
_COLLECTIVES = ("/mindspore/", "/torch/distributed/")
_DATA = "/mindspore/dataset/"


@dataclass(frozen=True, slots=True)
class StackFrame:
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
    frames: tuple[StackFrame, ...]

    def words(self) -> str:
        """Say who stands where: the innermost frame, and the user's own line that led there."""
        who = named_ranks(self.ranks)
        if not self.frames:
            return f"{who}: no Python stack could be taken"
        innermost = self.frames[0]
        own = next((frame for frame in self.frames if not frame.is_library), innermost)
        where = own.words() if own is innermost else f"{own.words()}, inside {innermost.words()}"
        return f"{who}: {where}"


def readable(text: str) -> str:
    """Return what faulthandler wrote with the letters of other scripts in file and function names, not as escapes."""
    return _ESCAPE.sub(_letter, text)


def _letter(escape: re.Match[str]) -> str:
    number = int(escape[1] or escape[2] or escape[3], 16)
    letter = chr(number) if number <= sys.maxunicode else ""
    return letter if letter.isprintable() and letter else escape[0]


def parse(text: str) -> tuple[StackFrame, ...]:
    """Return the main thread's frames, innermost first, of the last dump in a stack file; our own are left out."""
    threads: list[list[StackFrame]] = []
    for line in readable(text).splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame_line := _FRAME.match(line)):
            threads[-1].append(StackFrame(frame_line[1], frame_line[2], frame_line[3]))
    if not threads:
        return ()
    # faulthandler writes the main thread last: it was the first to be made.
    return tuple(frame for frame in threads[-1] if not any(mark in frame.file for mark in OUR_FRAMES))


def group(stacks: Mapping[int, Sequence[StackFrame]]) -> tuple[Group, ...]:
    """Put ranks with the same stack together, the largest group first."""
    groups: dict[tuple[StackFrame, ...], list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(tuple(stacks[rank]), []).append(rank)
    made = [Group(tuple(ranks), frames) for frames, ranks in groups.items()]
    return tuple(sorted(made, key=lambda item: (-len(item.ranks), item.ranks)))


def _is_in_collective(item: Group) -> bool:
    """Tell whether ranks stand inside a library in which they wait for others, not for their data."""
    files = [frame.file for frame in item.frames]
    waits_for_data = any(_DATA in file for file in files)
    return not waits_for_data and any(mark in file for file in files for mark in _COLLECTIVES)


def all_wait(groups: Sequence[Group]) -> bool:
    """Tell whether every rank stands where it may wait for another one."""
    return bool(groups) and all(_is_in_collective(item) for item in groups)


def odd_ranks(groups: Sequence[Group]) -> tuple[int, ...]:
    """Return the ranks that do not stand where most do; without a majority, those that are not inside MindSpore."""
    total = sum(len(item.ranks) for item in groups)
    odd = groups[1:]
    if len(groups) > 1 and len(groups[0].ranks) * 2 <= total:
        odd = [item for item in groups if not _is_in_collective(item)]
        odd = odd if len(odd) < len(groups) else []
    return tuple(sorted(rank for item in odd for rank in item.ranks))
