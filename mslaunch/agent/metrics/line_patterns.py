"""Reads metrics from lines of logs, by the patterns of the run order. A pattern that takes long is given up."""

from __future__ import annotations

import json
import re
import signal
import time

from mslaunch.shared import metric_values

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any

    from mslaunch.shared import messages
    from mslaunch.shared.metric_values import Values

LONGEST_MATCH = 0.05  # seconds of CPU time, on one line
SHARE = 0.02  # of a core: what a pattern that is not ours may take in all
ALLOWANCE = 0.5  # seconds of CPU time that it may take beyond that
ROLES = ("reads", "completes", "adds")  # in which order the patterns are tried
UNITS = {"step_time_ms": 1e-3, "step_time_us": 1e-6}  # groups that give step_time in another unit, in seconds
OTHER_NAMES = {"learning_rate": "lr", "global_step": "step", "iteration": "step", "iter": "step"}
"""What objects in lines call the usual metrics."""
_TELLING = frozenset({"step", "epoch", "loss", "lr", "eval_loss", "train_loss"})
"""An object that holds none of these is not about a training."""
_PAIR = re.compile(r"""'([A-Za-z_][\w./-]{0,63})':\s*'?([-+]?(?:[\d.][\d.eE+-]{0,40}|nan|inf))'?\s*[,}]""")


class _TookLong(Exception):
    pass


class _Row:
    """A pattern, ready to be tried."""

    def __init__(self, order: messages.LinePatternOrder) -> None:
        self.id = order["id"]
        self.literals = order["literals"]
        self.fields = order["fields"]
        self.text = order["regex"]
        self.regex: re.Pattern[str] | None = None
        self.built_in = order["built_in"]
        self.role = order["role"]
        first = self.fields[0] if self.fields else ""
        self.metric = "step_time" if first in UNITS else first
        """What a pattern that completes a line adds; a line that has it already needs nothing of it."""
        self.spent = 0.0


class LinePatterns:
    """All patterns of a run. `note` is called with a sentence for people."""

    def __init__(self, rows: list[messages.LinePatternOrder], note: Callable[[str], None]) -> None:
        self._rows = [_Row(row) for row in sorted(rows, key=lambda row: ROLES.index(row["role"]))]
        self._note = note
        self._began = time.monotonic()
        self._find_candidates()
        self._is_matching = False
        signal.signal(signal.SIGVTALRM, self._give_up)

    def _find_candidates(self) -> None:
        """Compile what finds lines worth a look in a block, without literals that hold another one."""
        rows = [row for row in self._rows if row.role != "completes"]
        literals = {literal for row in rows for literal in row.literals}
        needed = [text for text in literals if not any(other != text and other in text for other in literals)]
        if all(row.literals for row in rows):
            self.candidate = re.compile(b"|".join(sorted(re.escape(literal.encode()) for literal in needed)) or b"$^")
        else:  # a pattern of which nothing is known: any line may match
            self.candidate = re.compile(rb"[^\n]")

    def read(self, line: bytes) -> Values:
        text = line.decode("utf-8", "replace")
        values: Values = {}
        is_whole = False  # an object tells all of its line
        for row in tuple(self._rows):
            if row.role == "reads" and values:
                continue
            if row.role == "completes" and (is_whole or not values or row.metric in values):
                continue
            if row.literals and not any(literal in text for literal in row.literals):
                continue
            metrics = dict(self._match(row, text))
            is_whole = is_whole or (bool(metrics) and not row.fields)
            for name, value in metrics.items():
                if row.role != "completes" or name not in values:
                    metric_values.put(values, name, value)
        return values

    def _match(self, row: _Row, text: str) -> Iterator[tuple[str, float]]:
        if row.regex is None:  # not before: compiling all of them would hold up the start of the ranks by 10 ms
            row.regex = re.compile(row.text)
        match = row.regex.search(text) if row.built_in else self._match_in_time(row, row.regex, text)
        if match is None:
            return
        if not row.fields:
            yield from _object_numbers(match[0])
            return
        for name, group in zip(row.fields, match.groups()):
            number = metric_values.parse_number(group or "")
            if not name or number is None:
                continue
            if row.role == "adds":
                yield name, number
            else:
                yield from _in_seconds(name, number)

    def _match_in_time(self, row: _Row, regex: re.Pattern[str], text: str) -> re.Match[str] | None:
        """Try a pattern that is not ours: Python looks for signals while it matches, so that a timer ends it."""
        began = time.process_time()
        try:
            self._is_matching = True
            signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_MATCH)
            try:
                return regex.search(text)
            finally:
                self._is_matching = False
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TookLong:
            self._drop(row, f"took more than {LONGEST_MATCH * 1000:.0f} ms on one line")
            return None
        finally:
            row.spent += time.process_time() - began
            if row.spent > ALLOWANCE + SHARE * (time.monotonic() - self._began):
                self._drop(row, f"took more than {SHARE:.0%} of a core")

    def _give_up(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._is_matching:
            raise _TookLong

    def _drop(self, row: _Row, why: str) -> None:
        if row in self._rows:
            self._rows.remove(row)
            self._find_candidates()
            self._note(f"{row.id}: its regular expression {why}, so it is no longer tried; write a simpler one")


def _in_seconds(name: str, value: float) -> Iterator[tuple[str, float]]:
    if name in UNITS:
        yield "step_time", value * UNITS[name]
    elif name == "step_rate":
        if value:
            yield "step_time", 1 / value
    else:
        yield name, value


def _object_numbers(text: str) -> Iterator[tuple[str, float]]:
    """Return the numbers of an object, JSON's or Python's, where it is about a training."""
    pairs: list[tuple[str, Any]] = [(name, metric_values.parse_number(digits)) for name, digits in _PAIR.findall(text)]
    if text.startswith('{"'):
        try:
            pairs = list(json.loads(text).items())
        except (ValueError, RecursionError):
            return
    numbers = {OTHER_NAMES.get(name, name): value for name, value in pairs if type(value) in (int, float)}
    if not _TELLING.isdisjoint(numbers):
        yield from numbers.items()
