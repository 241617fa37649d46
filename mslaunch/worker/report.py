"""What a rank reports: short messages to its host's agent, error.json for everyone.

A script may change its environment, fork, and have modules named like the standard library's beside it. So who this
rank is, is noted before the script starts, only the rank itself speaks for it, and JSON is written without `json`.
"""

from __future__ import annotations

import os
import sys
import time

from mslaunch.shared import layout
from mslaunch.shared.headlines import headline

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from types import TracebackType

    Value = str | int | float | None

_LINE_LIMIT = 300  # twelve-fold when escaped: one write of up to 4,096 bytes into a pipe is never torn
_MESSAGE_LIMIT = 1 << 12
_TRACEBACK_LIMIT = 1 << 16
LAST_MESSAGES = ("done", "error")  # after these a rank may be ended at any time
_NOTE = 80  # room for what says that something was left out


class Me:
    """Who this process is, as its launcher said."""

    def __init__(self, environment: os._Environ[str] | dict[str, str]) -> None:
        self.pid = os.getpid()
        is_scheduler = environment.get("MS_ROLE") == "MS_SCHED"
        self.rank = None if is_scheduler else int(environment["RANK_ID"])
        self.host = environment.get("MSLAUNCH_HOST")
        self.agent = environment.get("MSLAUNCH_AGENT")
        self.say_done: int | None = None
        self.run_dir = environment["MSLAUNCH_RUN_DIR"]
        self._code = os.path.join(self.run_dir, layout.CODE, "")
        self._project = os.path.join(environment.get("MSLAUNCH_JOB_DIR") or self._code, "")
        name = layout.SCHEDULER if self.rank is None else layout.rank_folder(self.rank)
        self.folder = os.path.join(self.run_dir, name)

    def as_written(self, text: str) -> str:
        """Name the user's own files in a traceback, not the snapshot that ran."""
        return text.replace(f'File "{self._code}', f'File "{self._project}')


me: Me


def settle() -> Me:
    """Note who this process is; again after a fork that makes a new process the rank."""
    global me  # noqa: PLW0603 -- one process is one rank
    me = Me(os.environ)
    return me


class Unstopped:
    """Puts SIGTERM off while a rank reports what it failed of: the agent may be about to stop it for another rank.

    A report that takes too long is ended by the agent's SIGKILL.
    """

    def __enter__(self) -> Unstopped:
        import _signal  # type: ignore[import-not-found]  # a module of the script may be called `signal`

        self.received = False
        self._signals = _signal
        self._handler = _signal.signal(_signal.SIGTERM, self._receive)
        return self

    def _receive(self, *_: object) -> None:
        self.received = True

    def __exit__(self, *_: object) -> None:
        # None is a handler that Python does not know; this process ends in any case.
        self._signals.signal(self._signals.SIGTERM, self._handler or self._signals.SIG_DFL)
        if self.received:
            os.kill(os.getpid(), self._signals.SIGTERM)


def notify(what: str, **data: Value) -> None:
    """Send one message to the agent, if there is one; a rank never waits for it.

    The message has the present time, unless `time` is among the data.
    """
    if not me.agent:
        return
    if what in LAST_MESSAGES and (metrics := sys.modules.get("mslaunch.runtime.metrics")) is not None:
        metrics.flush()  # what the script has reported comes before its end
    data = {"time": time.time(), **data, "what": what, "rank": me.rank, "pid": os.getpid()}
    try:
        pipe = os.open(me.agent, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(pipe, to_json(data).encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(pipe)


def report_killed_children() -> None:
    """Tell the agent of children that were killed and that the script has not waited for."""
    children: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                children += map(int, file.read().split())
    except (OSError, ValueError):  # this kernel does not say
        pass
    for child in children:
        try:
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:  # something else has waited for it meanwhile
            continue
        if ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
            notify("child-killed", child=child, signal=ended.si_status)


def done() -> None:
    """Say that the script has ended well: what follows is how Python and MindSpore are taken apart."""
    if os.getpid() != me.pid:
        return  # a child that the script forked and that came to the script's end
    if me.say_done is not None:
        try:
            os.write(me.say_done, b"d")
        except OSError:
            pass
    notify("done")


def write_json(path: str, data: dict[str, Value]) -> None:
    """Write a file that others read while it is written: beside it first, then renamed."""
    beside = f"{path}.{os.getpid()}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(to_json(data) + "\n")
    os.replace(beside, path)


def to_json(data: dict[str, Value]) -> str:
    return "{" + ", ".join(f"{_text(name)}: {_value(value)}" for name, value in data.items()) + "}"


def _value(value: Value) -> str:
    if value is None:
        return "null"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    plain = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if " " <= c <= "~" else _escape(c) for c in plain) + '"'


def _escape(character: str) -> str:
    number = ord(character)
    if number > 0xFFFF:
        number -= 0x10000
        return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
    return f"\\u{number:04x}"


def record_error(
    error: BaseException, traceback: TracebackType | None, raised: float, thread: str | None = None
) -> str | None:
    """Write an exception into error.json, as `record` does."""
    text, summary = _format(error, traceback)
    return record(type(error).__name__, summary, text, raised, thread)


def record(kind: str, message: str, traceback: str, raised: float, thread: str | None = None) -> str | None:
    """Write error.json; return the line that says what went wrong, short enough for a message to the agent.

    None where this is not the rank itself, but a child that it forked.
    """
    if os.getpid() != me.pid:
        return None
    data: dict[str, Value] = {
        "rank": me.rank,
        "host": me.host,
        "pid": me.pid,
        "time": raised,
        "type": kind,
        "message": _cut(message, _MESSAGE_LIMIT),
        "traceback": _cut(traceback, _TRACEBACK_LIMIT),
        "thread": thread,
    }
    path = os.path.join(me.folder, layout.ERROR)
    try:
        if thread is None or not os.path.exists(path):  # what ended the rank overrides what ended a thread
            write_json(path, data)
    except OSError:
        pass  # a full disk must not hide the error itself
    return headline(message)[:_LINE_LIMIT]


def _format(error: BaseException, traceback: TracebackType | None) -> tuple[str, str]:
    """Return the traceback as Python would print it, with the names of the user's own files, and its last line."""
    try:
        import traceback as tracebacks

        text = "".join(tracebacks.format_exception(type(error), error, traceback))
        return me.as_written(text), f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # a module of the script's own may be called `traceback`, and an error's __str__ may fail
        return repr(error), f"{type(error).__name__}"


def _cut(text: str, limit: int) -> str:
    """Return the beginning and the end of a text that is too long; the rank's log has all of it."""
    if len(text) <= limit:
        return text
    half = (limit - _NOTE) // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out, see {layout.LOG} ...\n{text[-half:]}"
