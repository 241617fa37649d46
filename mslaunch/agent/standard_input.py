"""The launcher's standard input, which the agent has inherited for the one rank that reads it."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any


class StandardInput:
    """An open file, where there is one, and the rank that reads it. A terminal gets its modes back."""

    def __init__(self, end: int | None) -> None:
        self.reader: int | None = None
        self._end = end
        self._is_terminal = end is not None and os.isatty(end)
        self._modes: list[Any] | None = None
        if end is not None:
            os.set_inheritable(end, False)  # only the rank that reads it has it

    def begin(self, reader: int | None) -> None:
        """Take the rank that reads in this attempt; without one the file is closed for good."""
        self.reader = reader
        if reader is None:
            if self._end is not None:
                os.close(self._end)
            self._end, self._is_terminal = None, False

    def is_terminal_of(self, rank: int | None) -> bool:
        """Tell whether a person answers this rank at a terminal."""
        return self._is_terminal and rank is not None and rank == self.reader

    def lend(self, rank: int | None) -> int | None:
        """Return the file for the rank that reads it.

        The modes of a terminal are noted: a script that asks for a password changes them, and may be killed then.
        """
        if rank is None or rank != self.reader:
            return None
        if self._end is not None and self._is_terminal:
            import termios

            try:
                self._modes = termios.tcgetattr(self._end)
            except termios.error:
                self._modes = None
        return self._end

    def restore(self, rank: int) -> None:
        if rank == self.reader and self._end is not None and self._modes is not None:
            import termios

            try:
                termios.tcsetattr(self._end, termios.TCSANOW, self._modes)
            except termios.error:
                pass  # it has gone
            self._modes = None


def suspend(pid: int, is_stopped: bool) -> None:
    """Stop a rank that reads the terminal, or continue it: while the launcher is stopped, the shell reads there."""
    try:
        os.killpg(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        pass
