"""Looks at what a script imports: asks for the scheduler, and sees to it that init() and threads are watched.

Everything that costs start-up time is imported when it is needed: a script without MindSpore pays for none of it."""

from __future__ import annotations

import os
import sys
import time
from importlib.machinery import PathFinder

from mslaunch import __version__
from mslaunch.shared import layout
from mslaunch.worker import report
from mslaunch.worker.report import notify

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any

    from mslaunch.worker.report import Value

LIBRARIES = (
    *("mindspore", "numpy", "mindformers", "mindcv", "mindnlp", "mindone", "mindyolo", "msadapter", "torch"),
    *("transformers", "tokenizers", "datasets", "safetensors", "scipy", "pandas"),
)


def write_versions() -> None:
    """Write the versions of what is loaded by now into a file; only rank 0 does, since all have the same."""
    if report.me.rank != 0 or os.getpid() != report.me.pid:
        return
    versions: dict[str, Value] = {"mslaunch": __version__, "python": sys.version.split()[0]}
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version[:100]
    try:
        report.write_json(os.path.join(report.me.folder, layout.VERSIONS), versions)
    except OSError:
        pass  # a full disk: the job has other worries


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
    import functools
    import signal
    import threading

    @functools.wraps(init)
    def joined_init(*args: Any, **kwargs: Any) -> Any:
        # A rank that looks up its peers' addresses a moment too early sleeps 3 s in C++ before it looks again. SIGURG
        # cuts that short; the agent sends it when the first rank is through: then every address is there. It is ignored
        # by default, so that one which comes late does no harm.
        is_main = threading.current_thread() is threading.main_thread()
        is_wakeable = is_main and signal.getsignal(signal.SIGURG) == signal.SIG_DFL
        if is_wakeable:
            signal.signal(signal.SIGURG, lambda *_: None)
        notify("joining")
        try:
            result = init(*args, **kwargs)
        except RuntimeError as error:
            size = changed_size(planned, os.environ)
            if size is None:
                raise
            raise GroupSizeMismatch(planned, size) from error
        finally:
            if is_wakeable:
                signal.signal(signal.SIGURG, signal.SIG_DFL)
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
            notify("import")
        act = self._actions.get(name)
        return _and_then(PathFinder.find_spec(name, path), act) if act else None

    def watch_init(self, management: Any) -> None:
        sys.meta_path.remove(self)
        for name in ("init", "_init_with_store"):
            if hasattr(management, name):
                setattr(management, name, checked(getattr(management, name), management, self.planned))


def install(planned: int) -> None:
    sys.meta_path.insert(0, ImportWatch(planned))
    if "threading" in sys.modules:
        watch_threads(sys.modules["threading"])
    if "subprocess" in sys.modules:
        watch_programs(sys.modules["subprocess"])


def _imported(_: Any) -> None:
    """MindSpore is loaded: some libraries only look whether it is there."""
    notify("imported")
    write_versions()


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
    """Tell the agent of processes of multiprocessing that others have killed."""
    _report_killed(popen_fork.Popen, "poll", "_send_signal")


def watch_programs(subprocess: Any) -> None:
    """Tell the agent of programs that others have killed."""
    popen: Any = getattr(subprocess, "Popen", None)
    if hasattr(popen, "_handle_exitstatus"):  # else a module of the script's own, or a later Python's
        _report_killed(popen, "_handle_exitstatus", "send_signal")


def _report_killed(popen: Any, status_name: str, signal_name: str) -> None:
    """Have a class of processes report those that others have killed: what the script does about it is often to end.

    A pool sends SIGTERM to all its processes when one was killed, that one too: the signal tells who ended it.
    """
    take_status, send_signal = getattr(popen, status_name), getattr(popen, signal_name)
    sent: dict[int, list[int]] = {}

    def take_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        had_ended = self.returncode is not None
        result = take_status(self, *args, **kwargs)
        if not had_ended and self.returncode is not None:
            own = sent.pop(self.pid, ())
            if self.returncode < 0 and -self.returncode not in own:
                notify("child-killed", child=self.pid, signal=-self.returncode)
        return result

    def send_and_note(self: Any, number: int) -> Any:
        if self.returncode is None:
            sent.setdefault(self.pid, []).append(number)
        return send_signal(self, number)

    setattr(popen, status_name, take_and_report)
    setattr(popen, signal_name, send_and_note)


def _and_then(spec: ModuleSpec | None, act: Callable[[Any], None]) -> ModuleSpec | None:
    """Have `act` called with the module as soon as it is loaded."""
    if spec is not None and spec.loader is not None:
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec
