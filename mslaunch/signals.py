"""Signals as something to wait for: handlers only enqueue, the loop acts."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from mslaunch import interrupts

STACKS = signal.SIGUSR2  # `mslaunch stacks` asks the launcher with it
WARNING = signal.SIGUSR1  # Slurm sends it a minute before the time is up
SUSPEND = signal.SIGTSTP  # Ctrl-Z
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, STACKS, WARNING, SUSPEND)
ASKING = (STACKS, WARNING)  # signals that do not end a run


class SignalSource:
    """Signals that code sends: for a launcher in a thread, which must not take those of its process."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def send(self, number: int) -> None:
        with suppress(BlockingIOError):  # then there is enough to read
            os.write(self._write, bytes([number]))

    def settle(self, code: int) -> None:
        """The run has ended with this exit code, which no signal changes any more."""

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        try:
            return [number for number in os.read(self._read, 4096) if number]
        except BlockingIOError:
            return []


class Signals(SignalSource):
    """Catches what a launcher is sent while it is in use."""

    def __enter__(self) -> Signals:
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # What is ignored stays ignored: `nohup mslaunch …` must survive SIGHUP. Only job.sbatch ignores the warning.
        heeded = [number for number in _SIGNALS if number == WARNING or signal.getsignal(number) != signal.SIG_IGN]
        self._handlers: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in heeded}
        os.write(self._write, bytes(interrupts.pop_received()))
        return self

    def settle(self, code: int) -> None:
        for number, handler in self._handlers.items():
            self._handlers[number] = interrupts.keeper(handler, code)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        self.close()

    def read(self) -> list[int]:
        return [number for number in super().read() if number in _SIGNALS]
