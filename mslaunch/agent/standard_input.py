"""The launcher's standard input, which the agent has inherited for the one rank that reads it."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any


class StandardInput:
    """An open file, where there is one. A terminal stays in the mode that it was found in."""

    def __init__(self, end: int | None) -> None:
        self.end = end
        self.is_terminal = end is not None and os.isatty(end)
        self._modes: list[Any] | None = None
        if end is not None:
            os.set_inheritable(end, False)  # only the rank that reads it has it

    def lend(self) -> None:
        """Remember how the terminal is set: a script that asks for a password changes that, and may be killed then."""
        if self.end is not None and self.is_terminal:
            import termios

            try:
                self._modes = termios.tcgetattr(self.end)
            except termios.error:
                self._modes = None

    def restore(self) -> None:
        """Set the terminal as it was."""
        if self.end is not None and self._modes is not None:
            import termios

            try:
                termios.tcsetattr(self.end, termios.TCSANOW, self._modes)
            except termios.error:
                pass  # it has gone
            self._modes = None

    def close(self) -> None:
        if self.end is not None:
            os.close(self.end)
        self.end, self.is_terminal = None, False


def suspend(pid: int, is_stopped: bool) -> None:
    """Stop a rank that reads the terminal, or continue it: while the launcher is stopped, the shell reads there."""
    try:
        os.killpg(pid, signal.SIGSTOP if is_stopped else signal.SIGCONT)
    except (ProcessLookupError, PermissionError):
        pass
