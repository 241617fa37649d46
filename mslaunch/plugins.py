"""Plug-ins: what other packages add through entry points. One that fails to load is named, and costs nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from mslaunch.errors import PluginBroken

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def names(group: str) -> list[str]:
    """Return the names that installed packages offer in a group."""
    return sorted({point.name for point in _points(group)})


def load(group: str, name: str, make: Callable[[Any], T]) -> T | None:
    """Load one plug-in and make of it what the group is for; None where no package offers one of this name."""
    broken: PluginBroken | None = None
    for point in _points(group):
        if point.name == name:
            try:
                return make(point.load())
            except (Exception, SystemExit) as error:  # whatever a foreign module does when it is imported
                package = point.dist.name if point.dist else "an unknown package"
                broken = broken or PluginBroken(name, group, package, error)
    if broken is not None:
        raise broken
    return None


def load_all(group: str, make: Callable[[Any], T]) -> list[T]:
    """Load every plug-in of a group; warn of those that fail."""
    loaded: list[T] = []
    for name in names(group):
        try:
            if (made := load(group, name, make)) is not None:
                loaded.append(made)
        except PluginBroken as error:
            warn(str(error))
    return loaded


@cache
def warn(text: str) -> None:
    """Write one line to standard error, once a process; from a thread, since a stopped terminal must not stop a job."""
    line = f"mslaunch: {text}\n".encode(errors="replace")
    writer = threading.Thread(target=_write, args=(line,), daemon=True)
    writer.start()
    writer.join(1.0)


def _write(line: bytes) -> None:
    with suppress(OSError):  # the terminal is gone
        os.write(2, line)


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # 10 ms, for those who need it

    return tuple(entry_points(group=group))
