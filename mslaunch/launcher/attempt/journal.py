"""Where the news of a run goes: its files, and whoever watches it."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mslaunch.launcher.attempt.notices import ConsoleLost, LauncherNotice, Note, Notice
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.metrics.rows import Row

SAVE_EVERY = 0.5
SAVE_SHARE = 20  # saving the record of 10,000 ranks may take at most a twentieth of the time
MOST_NOTES = 50

Observer = Callable[[Notice, RunState, Callable[[], None]], None]
"""Is shown every notice, with how the attempt stands and what to call once it is on the screen."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Both clocks: one that only runs forward, for limits, and the wall's, for the record."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


REAL_CLOCK = Clock()


def nothing() -> None:
    """Call nobody back."""


@dataclass(slots=True)
class Journal:
    """Records what happens, and shows it."""

    show: Observer
    record: Callable[[Mapping[str, Any]], None]
    """Writes a line of events.jsonl."""
    keep: Callable[[list[Row]], None]
    """Writes rows of metrics."""
    save: Callable[[], None]
    """Writes run.json."""
    clock: Clock = REAL_CLOCK
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))
    """The last ones, which run.json holds too."""
    has_changed: bool = False
    save_at: float = 0.0

    def write(self, event: Mapping[str, Any]) -> None:
        """Record an event of an agent; run.json is saved soon."""
        self.has_changed = True
        self.record(event)

    def write_notice(self, notice: LauncherNotice) -> None:
        self.record(notice.record())

    def save_changes(self) -> None:
        """Save run.json where something has changed, and the less often the longer that takes."""
        now = self.clock.monotonic()
        if self.has_changed and now >= self.save_at:
            self.has_changed = False
            self.save()
            took = self.clock.monotonic() - now
            self.save_at = now + max(SAVE_EVERY, SAVE_SHARE * took)

    def notify(self, notice: Notice, run_state: RunState, shown: Callable[[], None] = nothing) -> None:
        """Show the notes that wait, then a notice."""
        if run_state.notes:
            self.flush_notes(run_state)
        self._show(notice, run_state, shown)

    def flush_notes(self, run_state: RunState) -> None:
        """Record and show what a person should know."""
        for text in run_state.pop_notes():
            note = Note(text, self.clock.wall())
            self.notes.append(text)
            self.write(note.record())
            self._show(note, run_state)

    def _show(self, notice: Notice, run_state: RunState, shown: Callable[[], None] = nothing) -> None:
        """Show a notice. If that fails, the job goes on."""
        try:
            self.show(notice, run_state, shown)
        except Exception:
            self.show = _show_nothing
            self.write_notice(ConsoleLost(traceback.format_exc()))


def _show_nothing(_notice: Notice, _run_state: RunState, shown: Callable[[], None]) -> None:
    shown()
