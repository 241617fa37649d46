"""Sees MindSpore being imported and joined: asks for the scheduler, checks the group's real size, speeds up init()."""

from __future__ import annotations

import functools
import importlib.machinery
import signal
import sys
import threading
from typing import Any, Callable

from mslaunch.worker.report import tell

_MANAGEMENT = "mindspore.communication.management"


class GroupSizeMismatch(RuntimeError):
    __module__ = "mslaunch"

    def __init__(self, planned: int, real: int) -> None:
        super().__init__(
            f"the planned group_size: {planned} is not equal to the real group_size: {real}. mslaunch planned "
            f"{planned} ranks, but mindspore.communication.init() formed a group of {real}: look for code that changes "
            f"MS_WORKER_NUM, RANK_SIZE or the rank table after the launch."
        )


class ImportWatch:
    """A finder that finds nothing itself: it only looks at the names that go by."""

    def __init__(self, planned: int) -> None:
        self.planned = planned

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        del target
        if name == "mindspore":
            tell("import")
        elif name == _MANAGEMENT:
            sys.meta_path.remove(self)
            return self._wrapped(importlib.machinery.PathFinder.find_spec(name, path))
        return None

    def _wrapped(self, spec: importlib.machinery.ModuleSpec | None) -> importlib.machinery.ModuleSpec | None:
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                for name in ("init", "_init_with_store"):
                    if hasattr(module, name):
                        setattr(module, name, checked(getattr(module, name), module, self.planned))

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(planned: int) -> None:
    sys.meta_path.insert(0, ImportWatch(planned))


def checked(init: Callable[..., Any], management: Any, planned: int) -> Callable[..., Any]:
    """Wrap init(): say when this rank joins, and compare the real group size with the planned one."""

    @functools.wraps(init)
    def joined_init(*args: Any, **kwargs: Any) -> Any:
        with _Wakeable():
            tell("joining")
            result = init(*args, **kwargs)
        tell("joined")
        real = management.get_group_size()
        if real != planned:
            raise GroupSizeMismatch(planned, real)
        return result

    return joined_init


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
