"""States of progress bars in a log: one per step is read, the one that shows the step with its own loss.

A bar such as tqdm's is drawn when its counter moves and when its loss is set, so that two states show one step. Where
the loop sets the loss before the step is counted, the first state of a step is right: the last one shows the loss of
the next step. Where the loop sets it afterwards, the last state is right: the first one shows the loss of the step
before.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._sets_loss_first = sets_loss_first and self._first is None
        self._read = b"", -1
        self._waiting: _State | None = None
        """A state that is read unless another one takes its place."""

    @property
    def sets_loss_first(self) -> bool:
        return self._sets_loss_first

    def add(self, state: _State) -> Iterator[bytes]:
        """Take what the bar shows now; return the lines that are to be read."""
        is_counted = state.step > self.shown.step
        if state.step == self._first and state.loss != self.shown.loss:
            self._sets_loss_first = True
        if not self._sets_loss_first:
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
        """Return the state that waits."""
        state, self._waiting = self._waiting, None
        if state is not None:
            self._read = state.loss, state.step
            yield state.line

    def settle(self) -> Iterator[bytes]:
        """Likewise where nothing has taken its place for long, unless the loss of the step may still come."""
        if not self._sets_loss_first and self._waiting is not None and self._waiting.loss != self._read[0]:
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
