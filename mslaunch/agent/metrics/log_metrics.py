"""Reads the log of a rank as it grows, in blocks, and takes metrics from some of its lines."""

from __future__ import annotations

import os
import re
import stat
import time
from itertools import islice

from mslaunch.shared.metric_values import is_odd

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from mslaunch.agent.metrics.line_patterns import LinePatterns
    from mslaunch.shared.metric_values import Values

    Timed = tuple[float, Values]
    T = TypeVar("T")

MOST_BARS = 16
_COUNTER = re.compile(rb"\|\s*(\d{1,18})/(\d{1,18}) \[")
_LOSS = re.compile(rb"[lL]oss\s*[:=]\s*([^\s,:\]]+)")


class _State:
    """A bar as it was drawn once."""

    def __init__(self, line: bytes, counter: re.Match[bytes]) -> None:
        loss = _LOSS.search(line)
        self.line = line
        self.step = int(counter[1])
        self.total = counter[2]
        self.loss = loss[1] if loss else b""
        self._place = counter.span(1)

    def of_the_next_step(self) -> _State | None:
        """Return what the bar would show once the step under way is counted; None where that was the last one."""
        if self.step >= int(self.total):
            return None
        start, end = self._place
        line = self.line[:start] + b"%d" % (self.step + 1) + self.line[end:]
        counter = _COUNTER.search(line)
        return _State(line, counter) if counter else None


class _Bar:
    """One bar while it counts."""

    def __init__(self, state: _State, sets_loss_first: bool) -> None:
        self.shown = state
        self._first = state.step if not state.loss or not state.step else None  # else the beginning was not read
        self.sets_loss_first = sets_loss_first and self._first is None
        self._read = b"", -1
        self._waiting: _State | None = None  # a state that is read unless another one takes its place

    def add(self, state: _State) -> Iterator[bytes]:
        """Take what the bar shows now; return the lines that are to be read."""
        is_counted = state.step > self.shown.step
        if state.step == self._first and state.loss != self.shown.loss:
            self.sets_loss_first = True
        if not self.sets_loss_first:
            if is_counted:
                yield from self.take()
            if state.step and state.loss and self._read != (state.loss, state.step):
                self._waiting = state
        elif is_counted:
            self._waiting = state
            yield from self.take()
        elif state.loss != self._read[0]:
            self._waiting = state.of_the_next_step()
        self.shown = state

    def take(self) -> Iterator[bytes]:
        state, self._waiting = self._waiting, None
        if state is not None:
            self._read = state.loss, state.step
            yield state.line

    def settle(self) -> Iterator[bytes]:
        """Likewise where nothing has taken its place for long, unless the loss of the step may still come."""
        if not self.sets_loss_first and self._waiting is not None and self._waiting.loss != self._read[0]:
            yield from self.take()


class ProgressBars:
    """The bars of one log, by how far they count."""

    def __init__(self) -> None:
        self._bars: dict[bytes, _Bar] = {}

    def lines(self, data: bytes) -> bytes:
        """Return whole lines, each state of a bar as one; of states that show a loss, those that are to be read."""
        data = data.replace(b"\r", b"\n")
        if not self._bars and b"%|" not in data:
            return data
        lines: list[bytes] = []
        for line in data.split(b"\n"):
            lines += self._add(line)
        return b"\n".join(lines)

    def settle(self, partial: bytes) -> bytes:
        """Return states that have stood for a while, also that of a line which has not ended."""
        lines = [*self._add(partial)] if _COUNTER.search(partial) and _LOSS.search(partial) else []
        return _joined([*lines, *(line for bar in self._bars.values() for line in bar.settle())])

    def finish(self) -> bytes:
        """Return the states that still wait: nothing more comes."""
        return _joined([line for bar in self._bars.values() for line in bar.take()])

    def _add(self, line: bytes) -> Iterator[bytes]:
        counter = _COUNTER.search(line)
        if counter is None:
            yield line
            return
        state = _State(line, counter)
        bar = self._bars.pop(state.total, None)
        if bar is None or state.step < bar.shown.step:
            if bar is not None:
                yield from bar.take()
            bar = _Bar(state, bar is not None and bar.sets_loss_first)
        self._bars[state.total] = bar
        if len(self._bars) > MOST_BARS:
            del self._bars[next(iter(self._bars))]
        if not state.loss:
            yield line
        yield from bar.add(state)


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


LONGEST_LINE = 4096
PIECE = 1 << 16
MANY_CANDIDATES = 1000  # lines of a block that are looked for one by one; of the rest about as many are found
MOST_TRIED = 100  # places with NaN or infinity, per look
MOST_ODD = 3  # further lines with NaN or infinity that are read per look
FEWEST = 2  # lines of each kind that are read per look, however many kinds there are
_ODD = (re.compile(rb"nan\b"), re.compile(rb"inf(?:inity)?\b"))  # each begins with fixed text, which is quick to find


class StepCounter:
    """Counts steps over epochs, and takes the time of a step where no line tells it."""

    def __init__(self) -> None:
        self._first_epoch = 1
        self._epoch: float | None = None
        self._most = 0.0  # steps that were seen in the present epoch
        self._per_epoch: float | None = None
        self._is_global = False  # steps are counted over epochs by the job itself
        self._has_step_times = False
        self._lacks_steps = False
        self._bar_steps: Any = None
        self._seen: dict[bool, tuple[bool, float, float]] = {}

    def add_to_all(self, rows: list[Timed], is_followed: bool = False) -> None:
        """Add what is known to rows that were read together; `is_followed`: by text that may have come later."""
        rows[:] = [row for row in rows if self._is_of_training(row[1])]
        for number, (when, values) in enumerate(rows):
            self.add_to(values, when, number == len(rows) - 1, is_followed)

    def _is_of_training(self, values: Values) -> bool:
        """Leave out progress bars, but the first one of a training whose other lines tell no step."""
        if values.keys() != {"step", "steps"}:
            self._lacks_steps = self._lacks_steps or ("loss" in values and "step" not in values)
            return True
        if self._lacks_steps and self._bar_steps is None:
            self._bar_steps = values["steps"]
        return self._lacks_steps and values["steps"] == self._bar_steps

    def add_to(self, values: Values, when: float, is_last: bool, is_followed: bool = False) -> None:
        """Add total_step and step_time to a row; `is_last`: of those that were read together."""
        step: Any = values.get("step")
        epoch: Any = values.get("epoch")
        if not isinstance(step, int):
            return
        self._has_step_times = self._has_step_times or "step_time" in values
        total: Any = values.get("total_step", step)
        if isinstance(epoch, int) and "total_step" not in values:
            total = self._count(epoch, step, values.get("steps"))
            if total not in (None, step):
                values["total_step"] = total
        if is_last and not self._has_step_times:
            self._take_time(values, (total is None, step if total is None else total, when), is_followed)

    def _count(self, epoch: int, step: int, steps: Any) -> float | None:
        """Return the steps since the first epoch; None where it is not known how many an epoch has."""
        if epoch == 0:
            self._first_epoch = 0
        if self._epoch is not None and epoch > self._epoch:
            self._is_global = step > self._most and steps is None
            self._per_epoch = self._most
            self._most = 0
        self._epoch = epoch
        self._most = max(self._most, step)
        per_epoch = steps if isinstance(steps, int) and step <= steps else self._per_epoch
        if self._is_global or epoch == self._first_epoch:
            return step
        return None if per_epoch is None else int((epoch - self._first_epoch) * per_epoch + step)

    def _take_time(self, values: Values, seen: tuple[bool, float, float], is_followed: bool) -> None:
        """Compare with what was seen before: whether steps are those of an epoch only, how many, and when.

        A step that is followed by other text has the time of that text: it is compared with another such one only.
        """
        before = self._seen.get(is_followed)
        if before is not None and before[0] == seen[0]:
            steps, seconds = seen[1] - before[1], seen[2] - before[2]
            if steps > 0 and seconds > 0:
                values["step_time"] = round(seconds / steps, 6)
            elif steps == 0:
                return
        self._seen[is_followed] = seen


class LogMetrics:
    """One log, which need not exist yet; one that was cut or replaced is read from its start."""

    def __init__(self, path: str, patterns: LinePatterns, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._patterns = patterns
        self._offset = 0
        self._file = 0
        self._partial = b""
        self._clock = clock
        self._looked = clock()
        self._steps = StepCounter()
        self._bars = ProgressBars()

    def read(self, most: int, limit: int, is_last: bool = False) -> list[Timed]:
        """Return metrics with their times, of at most about `most` new lines; about `limit` bytes are read.

        Where the log has grown by more, pieces from all over the new part are read. `is_last`: nothing more comes.
        """
        now = self._clock()
        began, self._looked = self._looked, now
        written, data = self._new_data(limit, is_last, began)
        if not data:
            return []
        ended = written if began <= written <= now else now
        matches = []
        for end, line in self._chosen_lines(data, most):
            values = self._patterns.read(line)
            if values:
                matches.append((end, values))
        if not matches:
            return []
        last = matches[-1][0]  # not the end of the data: a text after it, as a traceback, takes no time by its length
        rows = [(round(began + (ended - began) * end / max(1, last), 3), values) for end, values in matches]
        self._steps.add_to_all(rows, is_followed=bool(data[last:].strip()))
        return rows

    def _new_data(self, limit: int, is_last: bool, before: float) -> tuple[float, bytes]:
        """Return when the log was written to, and whole lines of what has come since the look before."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not hold us up
        except OSError:  # not there yet
            return 0.0, b""
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                return 0.0, b""
            if status.st_ino != self._file or status.st_size < self._offset:
                self._file, self._offset, self._partial = status.st_ino, 0, b""
            if status.st_size == self._offset and not is_last:
                return before, self._bars.settle(self._partial)
            data = self._partial + read_pieces(file, self._offset, status.st_size, limit)
            self._offset = status.st_size
        except OSError:  # a disk that fails, a server whose files have changed
            return 0.0, b""
        finally:
            os.close(file)
        if is_last:
            self._partial = b""
            return status.st_mtime, self._bars.lines(data + b"\n") + self._bars.finish()
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._partial = data[whole : whole + LONGEST_LINE]
        return status.st_mtime, self._bars.lines(data[:whole])

    def _candidates(self, data: bytes) -> dict[bytes, list[int]]:
        """Return where lines are that may tell something, by the text that they hold; of many, some."""
        kinds: dict[bytes, list[int]] = {}
        search, at, count, skipped = self._patterns.candidate.search, 0, 0, 0
        while match := search(data, at):
            kinds.setdefault(match[0], []).append(match.start())
            at = data.find(b"\n", match.end()) + 1
            count += 1
            if not at:
                break
            if count == MANY_CANDIDATES:
                skipped = (len(data) - at) // MANY_CANDIDATES
            at += skipped
        for last in self._patterns.candidate.finditer(data, max(0, len(data) - LONGEST_LINE)) if skipped else ():
            kinds.setdefault(last[0], []).append(last.start())
        return kinds

    def _odd_places(self, data: bytes) -> Iterator[int]:
        """Return some places where NaN or infinity stands in a line that may tell something."""
        lowered, search = data.lower(), self._patterns.candidate.search
        for odd in _ODD:
            places = (match.start() for match in islice(odd.finditer(lowered), MOST_TRIED))
            likely = (at for at in places if search(data, data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)))
            yield from islice(likely, MOST_ODD)

    def _chosen_lines(self, data: bytes, most: int) -> list[tuple[int, bytes]]:
        """Return some of the lines that may tell something, with where they end, in their order."""
        kinds = self._candidates(data)
        quota = max(FEWEST, most // max(1, len(kinds)))
        chosen = {at for places in kinds.values() for at in spread(places, quota)}
        if kinds:
            chosen.update(self._odd_places(data))
        lines: dict[int, tuple[int, bytes]] = {}
        for at in sorted(chosen):
            start = data.rfind(b"\n", 0, at) + 1
            if start not in lines:
                end = data.find(b"\n", at)
                lines[start] = end, data[start : min(end, start + LONGEST_LINE)]
        return list(lines.values())


def read_pieces(file: int, start: int, end: int, limit: int) -> bytes:
    """Read all of a part of a file, or pieces from all over it, cut to whole lines, where it is longer than `limit`."""
    if end - start <= limit:
        return os.pread(file, end - start, start)
    count = max(2, limit // PIECE)
    pieces = []
    for number in range(count):
        at = start + (end - PIECE - start) * number // (count - 1)
        piece = os.pread(file, PIECE, at)
        if number:
            piece = piece[_line_break(piece) :]
        if number < count - 1:
            piece = piece[: max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1]
        pieces.append(piece)
    return b"".join(pieces)


def _line_break(piece: bytes) -> int:
    ends = [at for at in (piece.find(b"\n"), piece.find(b"\r")) if at >= 0]
    return min(ends) + 1 if ends else len(piece)


def spread(items: Sequence[T], most: int) -> Iterable[T]:
    """Return the first, the last and evenly spread ones between them, `most` in all."""
    if len(items) <= most:
        return items
    if most == 1:
        return items[-1:]
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


def spread_rows(rows: list[Timed], most: int) -> list[Timed]:
    """Likewise for rows, with some of those that hold NaN or infinity."""
    if len(rows) <= most:
        return rows
    chosen = set(spread(range(len(rows)), most))
    odd = [number for number, (_, values) in enumerate(rows) if is_odd(values)]
    return [rows[number] for number in sorted(chosen.union(odd[:MOST_ODD]))]
