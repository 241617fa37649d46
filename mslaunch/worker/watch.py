"""Looks at what a script imports: asks for the scheduler, and sees to it that init() and threads are watched.

Everything that costs start-up time is imported when it is needed: a script without MindSpore pays for none of it.
"""

from __future__ import annotations

import sys
import time
from importlib.machinery import PathFinder

from mslaunch.worker import loaded_versions, report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any


class ImportWatch:
    """A finder that finds nothing itself: it sees which modules are imported, and patches some of them after import."""

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self._actions: dict[str, Callable[[Any], None]] = {
            "mindspore": _imported,
            "mindspore.communication.management": self.watch_init,
            "multiprocessing.popen_fork": watch_children,
            "subprocess": watch_programs,
            "threading": watch_threads,
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del target
        if name == "mindspore":
            report.notify("import")
        act = self._actions.get(name)
        return _and_then(PathFinder.find_spec(name, path), act) if act else None

    def watch_init(self, management: Any) -> None:
        from mslaunch.worker import init_watch

        sys.meta_path.remove(self)
        for name in ("init", "_init_with_store"):
            if hasattr(management, name):
                setattr(management, name, init_watch.checked(getattr(management, name), management, self.planned))


def install(planned: int) -> None:
    sys.meta_path.insert(0, ImportWatch(planned))
    if "threading" in sys.modules:
        watch_threads(sys.modules["threading"])
    if "subprocess" in sys.modules:
        watch_programs(sys.modules["subprocess"])


def _imported(_: Any) -> None:
    """MindSpore is loaded: some libraries only look whether it is there."""
    report.notify("imported")
    loaded_versions.write()


def watch_threads(threading: Any) -> None:
    """Record what a thread dies of: by itself that ends no rank, but it may explain why one hangs or ends later."""

    show = threading.excepthook

    def record(args: Any) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            thread = args.thread.name if args.thread else "?"
            report.record_error(args.exc_value, args.exc_traceback, time.time(), thread)
        show(args)

    threading.excepthook = record


def watch_children(popen_fork: Any) -> None:
    """Tell the agent of processes that others have killed: what the script does about it is often to end.

    A pool sends SIGTERM to all its processes when one was killed, that one too: the signal tells who ended it.
    """

    class Popen(popen_fork.Popen):  # type: ignore[misc]
        sent: tuple[int, ...] = ()

        def poll(self, *args: Any, **kwargs: Any) -> Any:
            ended = self.returncode is not None
            code = super().poll(*args, **kwargs)
            if not ended and code is not None and code < 0 and -code not in self.sent:
                report.notify("child-killed", child=self.pid, signal=-code)
            return code

        def _send_signal(self, sig: int) -> Any:
            self.sent = (*self.sent, sig)
            return super()._send_signal(sig)

    popen_fork.Popen = Popen


def watch_programs(subprocess: Any) -> None:
    """Tell the agent of programs that others have killed, as of processes of multiprocessing."""
    popen: Any = getattr(subprocess, "Popen", None)
    if not hasattr(popen, "_handle_exitstatus"):  # a module of the script's own, or a later Python's
        return
    take_status, send_signal = popen._handle_exitstatus, popen.send_signal
    sent: dict[int, list[int]] = {}

    def _handle_exitstatus(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = take_status(self, *args, **kwargs)
        own = sent.pop(self.pid, ())
        if self.returncode is not None and self.returncode < 0 and -self.returncode not in own:
            report.notify("child-killed", child=self.pid, signal=-self.returncode)
        return result

    def _send_signal(self: Any, number: int) -> None:
        if self.returncode is None:
            sent.setdefault(self.pid, []).append(number)
        send_signal(self, number)

    popen._handle_exitstatus, popen.send_signal = _handle_exitstatus, _send_signal


def _and_then(spec: ModuleSpec | None, act: Callable[[Any], None]) -> ModuleSpec | None:
    """Have `act` called with the module as soon as it is loaded."""
    if spec is not None and spec.loader is not None:
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec
