"""Around mindspore.communication.init(): says when a rank joins, checks the size of its group, cuts sleeps short."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

from mslaunch.worker.report import notify


class GroupSizeMismatch(RuntimeError):
    __module__ = "mslaunch"

    def __init__(self, planned: int, real: int) -> None:
        super().__init__(
            f"the planned group_size: {planned} is not equal to the real group_size: {real}. mslaunch planned "
            f"{planned} ranks, but mindspore.communication.init() formed a group of {real}: look for code that changes "
            f"MS_WORKER_NUM, RANK_SIZE or the rank table after the launch."
        )


def checked(init: Callable[..., Any], management: Any, planned: int) -> Callable[..., Any]:
    """Wrap init(): say when this rank joins, and compare the real group size with the planned one."""

    @functools.wraps(init)
    def joined_init(*args: Any, **kwargs: Any) -> Any:
        with _Wakeable():
            notify("joining")
            try:
                result = init(*args, **kwargs)
            except RuntimeError as error:
                size = changed_size(planned, os.environ)
                if size is None:
                    raise
                raise GroupSizeMismatch(planned, size) from error
        notify("joined")
        real = management.get_group_size()
        if real != planned:
            raise GroupSizeMismatch(planned, real)
        return result

    return joined_init


def changed_size(planned: int, environment: Mapping[str, str]) -> int | None:
    """Return the size that a script has set itself: MindSpore then speaks of processes that were not spawned."""
    size = environment.get("MS_WORKER_NUM", "")
    return int(size) if size.isdecimal() and int(size) != planned else None


class _Wakeable:
    """While init() runs, SIGURG cuts its sleeps short.

    A rank that looks up its peers' addresses a moment too early sleeps 3 s in C++ before it looks again. The agent
    sends SIGURG when the first rank is through, which is when every address is there. SIGURG is ignored by default,
    so one that comes late does no harm.
    """

    def __enter__(self) -> None:
        self.mine = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) == signal.SIG_DFL
        )
        if self.mine:
            signal.signal(signal.SIGURG, lambda *_: None)

    def __exit__(self, *_: Any) -> None:
        if self.mine:
            signal.signal(signal.SIGURG, signal.SIG_DFL)
