"""Regular expressions that a user has written: compiled once, refused with a sentence, tried for a bounded time."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from mslaunch.errors import RequestError

LONGEST_MATCH = 0.2
"""Seconds of CPU time for one name."""
_SHOWN = 60


class TookLong(Exception):
    """A regular expression would take long to find out whether it matches."""


@cache  # a file of rules, whose size is limited, is gone through again for every name
def compile_pattern(where: str, text: str) -> re.Pattern[str]:
    """Compile an expression; `where` is its place, for the message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise RequestError(f"{where}: {shown!r} is not a regular expression: {error}.") from None


@contextmanager
def limited_matching() -> Iterator[None]:
    """Raise TookLong where matching takes long: Python looks for signals while it matches, so that a timer ends it.

    Signals reach the main thread alone; in others there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _give_up)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_MATCH)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _give_up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TookLong
