"""The screen of a running job: output of ranks with a prefix, live lines in a terminal, the verdict at the end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from mslaunch.cli.console.describe import (
    describe_end,
    describe_outputs,
    describe_verdict,
    describe_warnings,
    duration_of,
)
from mslaunch.cli.console.live_lines import LiveLines, fit_parts
from mslaunch.cli.console.screen import Screen
from mslaunch.metrics.progress import progress_words
from mslaunch.text import clock_words, counted, first_line, plain, plain_output

if TYPE_CHECKING:
    from mslaunch.launcher.attempt.run_state import RunState
    from mslaunch.plan.model import Plan
    from mslaunch.run.record import RunRecord

RED, NO_COLOUR = "\x1b[31m", "\x1b[0m"
LONGEST_LINE = 4096  # the log has the rest
LINES_KNOWN = 200  # that were shown last: a traceback among them is not repeated
BAR_LINE_EVERY = 5.0  # seconds between two states of a progress bar where there is no terminal


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
        self._is_typed_to = plan.stdin is not None and os.isatty(0)
        self._is_line_open = False
        self._last_shown: deque[tuple[int, str]] = deque(maxlen=LINES_KNOWN)

    def open(self) -> None:
        plan = self.plan
        ranks = counted(plan.world_size, "rank")
        where = f"{ranks} on {plan.device_target}, {plan.method}; logs in {self._run_dir}"
        self.say([f"run {plan.run_id}: {where}", *plan.notes])

    def observe(self, event: Mapping[str, Any], run_state: RunState, then: Callable[[], None]) -> None:
        """Show one event; `then` is called once the lines of a rank are on the screen."""
        kind = event["ev"]
        if kind == "lines":
            self._show_output(event, then)
        elif kind == "bar":
            self._show_bar(event)
        elif kind == "signal" and run_state.ending.interrupt is not None:
            again = " (Ctrl-C again ends them at once)" if event["signal"] == signal.SIGINT else ""
            self.say([f"stopping all ranks{again}"])
        elif kind == "restart":
            self._headlined = False
            self._bars.clear()
        elif kind == "note":
            self.say([event["text"]])
        if run_state.ending.failures and not self._headlined and kind not in ("restart", "waiting"):
            self._headlined = True
            self.say([headline(run_state)])
        if self._draws:
            waits = kind == "waiting"
            self._draw([f"starting again in {event['seconds']:.0f} s"] if waits else self._status(run_state))

    def close(self, final: RunRecord) -> None:
        """Say how it ended; a failure with its whole verdict, last on the screen."""
        ended = describe_end(final, duration_of(final))
        self.say([ended, *describe_outputs(final, self._run_dir), *describe_warnings(final)])
        failed = final.verdict.rank if final.verdict else None
        above = [line for rank, line in self._last_shown if rank == failed]
        self.screen.write(verdict_text(final, self.screen.is_terminal, above))
        self.screen.close()

    def say(self, lines: list[str]) -> None:
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

    @property
    def _draws(self) -> bool:
        """Whether there are live lines now; where a person types, they would stand in the way of a prompt."""
        return self.screen.is_terminal and not self._is_typed_to and not self.screen.is_behind

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
        columns, lines = self.screen.size
        bars = [self._bars[rank] for rank in sorted(self._bars)]
        room = max(1, lines // 2)
        if len(bars) > room:
            bars = [*bars[:room], f"... and {len(bars) - room} more"]
        if text := self._live.draw([*bars, " | ".join(fit_parts([*status, clock], columns - 1))], columns):
            self.screen.write(text)

    def _write(self, text: str, then: Callable[[], None] | None = None) -> None:
        """Write whole lines where the live lines are, which are drawn below them afterwards."""
        self.screen.write((self._live.erase(self.screen.size[0]) if text else "") + text, then)


def headline(run_state: RunState) -> str:
    """One line, at once: who failed, and what is done about it."""
    failure = run_state.ending.failures[0]
    who = f"rank {failure.rank} on {failure.host}: " if failure.rank is not None else ""
    what = first_line(failure.summary)
    others = len(run_state.ranks.running) - (1 if failure.rank in run_state.ranks.running else 0)
    which = "rank" if failure.rank is None else "other rank"
    rest = f"; stopping {counted(others, which)}" if others else ""
    return f"{who}{what}{rest}"


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
