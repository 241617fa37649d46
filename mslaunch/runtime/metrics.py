"""report(): values of a script, sent to the agent of its host. It never raises, and never waits.

Sending costs more than a call may, so values that follow each other quickly are kept and sent together, with a later
one or at the end; of very many, some.
"""

from __future__ import annotations

import operator
import os
import time

from mslaunch.shared.metric_values import MOST_VALUES, is_name

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from typing import Any

    Row = tuple[float, str]

SEND_EVERY = 0.2  # seconds
MOST_KEPT = 64  # rows in between
LONGEST = 4000  # bytes: one write of up to 4,096 into a pipe is never torn
LAST_TRIES = 200  # at the end, while the pipe is full
TRY_EVERY = 0.005
_INFINITE = (float("inf"), float("-inf"))


class Reporter:
    """What one process reports; a child that it forks has one of its own."""

    def __init__(self, agent: str | None, rank: str | None) -> None:
        self.agent = agent if agent and rank and rank.isdigit() else None
        self.rank = rank
        self.pid = os.getpid()
        self._names: dict[str, str] = {}
        self._rows: list[Row] = []
        self._odd: list[Row] = []
        self._stride = 1
        self._skipped = 0
        self._sent = 0.0
        self._is_busy = False
        self._pipe = -1
        self._file = (0, 0)

    def add(self, values: dict[str, Any]) -> None:
        now = time.time()
        pairs = ", ".join([f"{name}: {text}" for name, text in self._pairs(values)])
        if not pairs:
            return
        if 0 <= now - self._sent < SEND_EVERY or self._is_busy:
            self._keep(now, pairs)
        else:
            self._sent = now
            self._rows.append((now, pairs))
            self.flush()

    def _pairs(self, values: dict[str, Any]) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        room = LONGEST - 200
        for name, value in values.items():
            quoted = self._names.get(name)
            if quoted is None:
                quoted = self._names[name] = f'"{name}"' if is_name(name) else ""
            text = _text(value) if quoted else ""
            room -= len(quoted) + len(text) + 4
            if room < 0 or len(pairs) == MOST_VALUES:
                break
            if text:
                pairs.append((quoted, text))
        return pairs

    def _keep(self, now: float, pairs: str) -> None:
        """Keep some of many rows, evenly spread, the last one and those with NaN or infinity."""
        if '"nan"' in pairs or 'inf"' in pairs:
            self._odd = [*self._odd[: MOST_KEPT // 8 - 1], (now, pairs)]
            return
        if self._skipped:
            self._rows.pop()  # the last one, which is not the last any more
        self._rows.append((now, pairs))
        self._skipped = (self._skipped + 1) % self._stride
        if len(self._rows) > MOST_KEPT:
            self._rows = self._rows[::2]
            self._stride *= 2

    def flush(self, tries: int = 1) -> None:
        """Send what is kept; what the pipe does not take is kept on."""
        if self._is_busy or os.getpid() != self.pid:
            return
        self._is_busy = True  # a signal handler may report, too
        try:
            rows = sorted(self._rows + self._odd)
            self._rows, self._odd, self._stride, self._skipped = [], [], 1, 0
            while rows:
                count = _pack(rows)
                if not self._write(rows[:count], tries):
                    self._rows = rows[-MOST_KEPT:]
                    return
                rows = rows[count:]
        finally:
            self._is_busy = False

    def _write(self, rows: list[Row], tries: int) -> bool:
        text = ", ".join([f"[{when:.3f}, {{{pairs}}}]" for when, pairs in rows])
        data = f'{{"what": "metrics", "rank": {self.rank}, "time": {time.time():.3f}, "rows": [{text}]}}\n'.encode()
        for number in range(tries):
            if number:
                time.sleep(TRY_EVERY)
            try:
                os.write(self._open(), data)
                return True
            except BlockingIOError:
                continue
            except OSError:  # the agent is gone
                self.agent = None
                return True
        return False

    def _open(self) -> int:
        """Return the pipe to the agent; a script may have closed all files, and have opened others since."""
        try:
            if self._file == _identity(self._pipe):
                return self._pipe
        except OSError:
            pass
        self._pipe = os.open(self.agent or "", os.O_WRONLY | os.O_NONBLOCK)
        self._file = _identity(self._pipe)
        return self._pipe


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _whole(value: Any) -> int | None:
    """Return an integer of any kind as Python's own: a step must be one; None for what is none."""
    try:
        return operator.index(value)
    except Exception:  # a float, an array, whatever a foreign object does
        return None


def _text(value: Any) -> str:
    """Write a number as JSON, or as a word where JSON has none; empty for what is no number."""
    if type(value) is int:
        return repr(value) if -(1 << 63) < value < 1 << 63 else _text(float(value))
    try:
        if type(value) is not float and (whole := _whole(value)) is not None:
            return _text(whole)
        value = float(value)
    except Exception:  # whatever a foreign object does
        return ""
    if value != value:  # noqa: PLR0124 -- only NaN differs from itself
        return '"nan"'
    if value in _INFINITE:
        return '"inf"' if value > 0 else '"-inf"'
    return repr(value)


def _pack(rows: list[Row]) -> int:
    """Return how many rows fit into one message."""
    size = 100
    for number, (_, pairs) in enumerate(rows):
        size += len(pairs) + 24
        if size > LONGEST and number:
            return number
    return len(rows)


_reporter: Reporter | None = None
_agent, _rank = os.environ.get("MSLAUNCH_AGENT"), os.environ.get("RANK_ID")


def report(**values: Any) -> None:
    """Tell mslaunch metrics: `report(step=3, loss=0.5, tokens=4096)`. Without mslaunch it does nothing.

    Values are numbers, or anything that float() takes. Names have letters, digits, and _ . / - after the first letter.
    """
    global _reporter  # noqa: PLW0603 -- one process has one
    try:
        if _reporter is None or _reporter.pid != os.getpid():
            _reporter = Reporter(_agent, _rank)
            if _reporter.agent:
                import atexit

                atexit.register(flush)
        if _reporter.agent:
            _reporter.add(values)
    except Exception:  # a training never ends for the sake of a metric
        pass


def flush() -> None:
    """Send what is kept: the process ends."""
    try:
        if _reporter is not None and _reporter.agent:
            _reporter.flush(LAST_TRIES)
    except Exception:
        pass
