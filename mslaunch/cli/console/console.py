"""The screen of a running job: output of ranks with a prefix, live lines in a terminal, the verdict at the end."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mslaunch.cli.console.describe import describe_end, describe_outputs, describe_verdict, describe_warnings
from mslaunch.launcher.attempt.notices import Note, Notice, Restart, RestartPause, SignalNotice
from mslaunch.metrics.progress import TIME_LEFT, progress_words
from mslaunch.shared.follow import Follower
from mslaunch.text import clock_words, counted, display_width, first_line, plain, plain_output, shorten

if TYPE_CHECKING:
    from mslaunch.launcher.attempt.run_state import RunState
    from mslaunch.plan.model import Plan
    from mslaunch.run.record import RunRecord

PATIENCE = 2.0  # what a stalled reader gets at the end
BEHIND = 16
ROOM = 1 << 22  # lines wait in their file while more than this is to be shown
ERASE_BELOW = "\x1b[J"
RED, NO_COLOUR = "\x1b[31m", "\x1b[0m"
LONGEST_LINE = 4096  # the log has the rest
LINES_KNOWN = 200  # that were shown last: a traceback among them is not repeated
BAR_LINE_EVERY = 5.0  # seconds between two states of a progress bar where there is no terminal
LEFT_OUT = (*map(re.compile, (" steps/s$", "/step$", " joined$", " ranks up$", "^loss ")), TIME_LEFT)
"""Which parts of a status line are left out, the least important first; all others stay."""


def window_size(end: int) -> tuple[int, int]:
    """Return columns and lines of a terminal as it is now."""
    try:
        columns, lines = os.get_terminal_size(end)
    except OSError:
        columns, lines = 0, 0
    return columns or 80, lines or 24


class Screen:
    """A thread with a queue in front of a file descriptor: a terminal that is stopped or gone never holds up a job.

    When nobody reads any more, what is written goes nowhere.
    """

    def __init__(self, end: int) -> None:
        self.end = end
        self._queue: queue.SimpleQueue[tuple[bytes, Callable[[], object] | None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.is_terminal = os.isatty(end) and os.environ.get("TERM") != "dumb"

    @property
    def is_behind(self) -> bool:
        """Tell whether much is still to be written: what will be drawn again soon need not be drawn now."""
        return self._queue.qsize() > BEHIND

    def uncover(self) -> bool:
        """End what hides the screen; return whether something did until now."""
        return False

    def write(self, text: str, then: Callable[[], object] | None = None) -> None:
        """Have text written, and `then` called once it is."""
        self._queue.put((text.encode("utf-8", "backslashreplace"), then))

    def close(self) -> None:
        """Wait until all is written; not for ever, if nobody reads."""
        self._queue.put(None)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        gone = False
        while (piece := self._queue.get()) is not None:
            data, then = piece
            try:
                while data and not gone:
                    data = data[os.write(self.end, data) :]
            except OSError:
                gone = True
            if then is not None:
                then()


class ShownFile:
    """Shows a file as it grows, no faster than the screen takes it: the file is the buffer."""

    def __init__(self, file: Follower, screen: Screen) -> None:
        self._file = file
        self._screen = screen
        self._sent = 0
        self._shown = 0

    def show(self) -> bool:
        """Show what there is room for; return whether there was something."""
        has_shown = False
        while self._sent - self._shown < ROOM and self._file.behind():
            lines = self._file.read()
            has_shown = has_shown or bool(lines)
            self._write(lines)
        return has_shown

    def finish(self) -> None:
        """Show the rest, for as long as somebody reads it; where nobody does, say where it is."""
        before, since = self._shown, time.monotonic()
        while self._file.behind() and time.monotonic() - since < PATIENCE:
            if not self.show():
                time.sleep(0.01)
            if self._shown != before:
                before, since = self._shown, time.monotonic()
        if left := self._file.behind():
            self._write([f"... {left / 1e6:.1f} MB not shown here: {self._file.path}"])
        else:
            self._write(self._file.rest())

    def _write(self, lines: list[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)

        def note_shown() -> None:
            self._shown += len(text)

        self._sent += len(text)
        self._screen.write(text, note_shown)


@dataclass(slots=True)
class LiveLines:
    """Some lines that are redrawn in place, below everything else that is written: returns what a terminal is sent."""

    drawn: tuple[str, ...] = ()

    def erase(self, columns: int) -> str:
        """Return what removes the lines, so that other text can be written in their place."""
        if not self.drawn:
            return ""
        start, self.drawn = self._to_the_first(columns), ()
        return start + ERASE_BELOW

    def draw(self, lines: Sequence[str], columns: int) -> str:
        """Return what shows lines in place of those before; nothing where they are the same."""
        cut = tuple(shorten(line, columns - 1) for line in lines)  # in the last column a terminal may wrap the line
        if cut == self.drawn:
            return ""
        start, self.drawn = self._to_the_first(columns), cut
        return start + "\x1b[K\n".join(cut) + ERASE_BELOW

    def _to_the_first(self, columns: int) -> str:
        """Return what moves the cursor; in a window that was made narrower, lines take more rows than before."""
        rows = sum(max(1, -(-display_width(line) // columns)) for line in self.drawn)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "")


def fit_parts(parts: Sequence[str], columns: int, between: str = " | ") -> list[str]:
    """Return the parts of a status line that fit into so many columns."""
    fitting = list(parts)
    for pattern in LEFT_OUT:
        if display_width(between.join(fitting)) <= columns:
            break
        fitting = [part for part in fitting if not pattern.search(part)]
    return fitting


class Console:
    """Shows events as they come. With no terminal, plain lines only."""

    def __init__(self, plan: Plan, screen: Screen, seconds: float = 0.0) -> None:
        """`seconds` have passed since the run began."""
        self.plan = plan
        self.screen = screen
        self.began = time.monotonic() - seconds
        self._run_dir = min(plan.run_dir, os.path.relpath(plan.run_dir), key=len)
        self._headlined = False
        self._live = LiveLines()
        self._bars: dict[int, str] = {}
        self._bar_shown: dict[int, float] = {}
        # Where a person types, live lines would stand in the way of a prompt.
        self._has_live_lines = screen.is_terminal and not (plan.stdin is not None and os.isatty(0))
        self._is_line_open = False
        self._last_shown: deque[tuple[int, str]] = deque(maxlen=LINES_KNOWN)

    def open(self) -> None:
        """Say what runs, and where its logs are."""
        plan = self.plan
        where = f"{counted(plan.world_size, 'rank')} on {plan.device_target}, {plan.method}; logs in {self._run_dir}"
        self.say([f"run {plan.run_id}: {where}", *plan.notes])

    def observe(self, notice: Notice, run_state: RunState, then: Callable[[], None]) -> None:
        """Show one notice; `then` is called once the lines of a rank are on the screen."""
        if isinstance(notice, dict):
            if notice["ev"] == "lines":
                self._show_output(notice, then)
            elif notice["ev"] == "bar":
                self._show_bar(notice)
        elif isinstance(notice, SignalNotice) and run_state.ending.interrupt is not None:
            again = " (Ctrl-C again ends them at once)" if notice.signal == signal.SIGINT else ""
            self.say([f"stopping all ranks{again}"])
        elif isinstance(notice, Restart):
            self._headlined = False
            self._bars.clear()
        elif isinstance(notice, Note):
            self.say([notice.text])
        if run_state.ending.failures and not self._headlined and not isinstance(notice, (Restart, RestartPause)):
            self._headlined = True
            self.say([headline(run_state)])
        if self._has_live_lines and not self.screen.is_behind:
            status = self._status(run_state)
            if isinstance(notice, RestartPause):
                status = [f"starting again in {notice.seconds:.0f} s"]
            self._draw(status)

    def close(self, final: RunRecord) -> None:
        """Say how it ended; a failure with its whole verdict, last on the screen."""
        lines = [describe_end(final)]
        if final.outputs:
            lines.append(describe_outputs(final, self._run_dir))
        self.say([*lines, *describe_warnings(final)])
        if final.verdict is not None:
            above = [line for rank, line in self._last_shown if rank == final.verdict.rank]
            self.screen.write(verdict_text(final, self.screen.is_terminal, above))
        self.screen.close()

    def say(self, lines: list[str]) -> None:
        """Show lines of mslaunch's own."""
        if lines:
            start = "\n" if self._is_line_open else ""
            self._is_line_open = False
            self._write(start + "".join(f"mslaunch: {plain(line)}\n" for line in lines))

    def _show_output(self, event: Mapping[str, Any], then: Callable[[], None]) -> None:
        rank, lines = event["rank"], event["lines"]
        if event.get("raw"):
            self._is_line_open = bool(lines[-1])
            self.screen.write("\n".join(lines), then)
            return
        self._bars.pop(rank, None)
        self._bar_shown.pop(rank, None)
        from mslaunch.diagnose.patterns.pattern import is_healthy_noise

        prefix = self._prefix(event)
        telling = [line for line in lines if not is_healthy_noise(line)]
        self._last_shown.extend((rank, line) for line in telling)
        self._write("".join(f"{prefix}{plain_output(line, LONGEST_LINE)}\n" for line in telling), then)

    def _show_bar(self, event: Mapping[str, Any]) -> None:
        """Keep a progress bar for the live lines; where there are none, a line of it now and then."""
        rank, now = event["rank"], time.monotonic()
        text = self._prefix(event) + plain_output(event["text"], LONGEST_LINE)
        if self.screen.is_terminal:
            self._bars[rank] = text
        elif now - self._bar_shown.setdefault(rank, now) >= BAR_LINE_EVERY:
            self._bar_shown[rank] = now
            self._write(f"{text}\n")

    def _prefix(self, event: Mapping[str, Any]) -> str:
        where = f"{event['host']} " if len(self.plan.hosts) > 1 else ""
        return f"[{where}rank {event['rank']}] "

    def _status(self, run_state: RunState) -> list[str]:
        up = sum(1 for record in run_state.ranks.records.values() if record.state == "running")
        parts = [f"{up}/{run_state.plan.world_size} ranks up"]
        if run_state.joining.joined and len(run_state.joining.joined) < run_state.plan.world_size:
            parts.append(f"{len(run_state.joining.joined)} joined")
        rank = self.plan.tail[0] if self.plan.tail else 0
        return [*parts, *progress_words(*run_state.numbers.shown(rank, time.monotonic()))]

    def _draw(self, status: list[str]) -> None:
        clock = clock_words(time.monotonic() - self.began)
        columns, lines = window_size(self.screen.end)
        bars = [self._bars[rank] for rank in sorted(self._bars)]
        room = max(1, lines // 2)
        if len(bars) > room:
            bars = [*bars[:room], f"... and {len(bars) - room} more"]
        if text := self._live.draw([*bars, " | ".join(fit_parts([*status, clock], columns - 1))], columns):
            self.screen.write(text)

    def _write(self, text: str, then: Callable[[], None] | None = None) -> None:
        """Write whole lines where the live lines are, which are drawn below them afterwards."""
        if text and self._live.drawn:
            text = self._live.erase(window_size(self.screen.end)[0]) + text
        self.screen.write(text, then)


def headline(run_state: RunState) -> str:
    """One line, at once: who failed, and what is done about it."""
    failure = run_state.ending.failures[0]
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    others = len(run_state.ranks.running) - (1 if failure.rank in run_state.ranks.running else 0)
    which = "rank" if failure.rank is None else "other rank"
    rest = f"; stopping {counted(others, which)}" if others else ""
    return f"{who}{first_line(failure.summary)}{rest}"


def verdict_text(final: RunRecord, terminal: bool, above: Collection[str] = ()) -> str:
    """A failed run's verdict: in a terminal between two rules, nothing beside its lines: paths can be copied."""
    lines = describe_verdict(final, above)
    if not lines:
        return ""
    if not terminal:
        return "".join(f"  {line}".rstrip() + "\n" for line in lines)
    columns = shutil.get_terminal_size().columns
    heading = f"── why run {plain(final.run_id)} failed "
    rules = (heading + "─" * (columns - len(heading)), "─" * columns)
    first, last = (f"{RED}{rule}{NO_COLOUR}" for rule in rules)
    return "".join(f"{line}\n" for line in (first, *lines, last))
