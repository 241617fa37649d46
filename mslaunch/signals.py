"""Signals as something to wait for: handlers only enqueue, the loop acts."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the C module behind signal
import os
import signal

_received: list[int] = []
_NAMES = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM", _signal.SIGHUP: "SIGHUP"}


def end_at_once() -> None:
    """Have signals end this process while it loads its modules: nothing has been started, nothing is undone."""
    for number in _NAMES:
        if _signal.getsignal(number) is not _signal.SIG_IGN:  # `nohup mslaunch` survives SIGHUP
            _signal.signal(number, _end)


def raise_them(undoes: bool) -> None:
    """Have Ctrl-C raise KeyboardInterrupt from now on.

    A verb that undoes what it has begun ends in this way by the other signals too; others just end.
    """
    for number in _NAMES:
        if _signal.getsignal(number) is not _end:
            continue  # this command runs in a program that has handlers of its own
        if undoes:
            _signal.signal(number, _raise)
        else:
            _signal.signal(number, _signal.default_int_handler if number == _signal.SIGINT else _signal.SIG_DFL)


def pop_received() -> list[int]:
    """Return the signals that have raised, each once: Python drops what is raised in a destructor, so a job asks."""
    numbers = _received[:]
    _received.clear()
    return numbers


def _end(number: int, _: object) -> None:
    _report(number)
    os._exit(128 + number)


def _raise(number: int, _: object) -> None:
    if not _received:
        _report(number)
    _received.append(number)
    if number == _signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _report(number: int) -> None:
    try:  # noqa: SIM105 -- contextlib would have to be loaded
        os.write(2, f"mslaunch: ended by {_NAMES[number]}\n".encode())
    except OSError:  # the terminal is gone
        pass


STACKS = signal.SIGUSR2  # `mslaunch stacks` asks the launcher with it
WARNING = signal.SIGUSR1  # Slurm sends it a minute before the time is up
SUSPEND = signal.SIGTSTP  # Ctrl-Z
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, STACKS, WARNING, SUSPEND)
ASKING = (STACKS, WARNING)
"""Signals that do not end a run."""


class Signals:
    """Catches what a launcher is sent while it is in use."""

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # What is ignored stays ignored: `nohup mslaunch …` must survive SIGHUP. Only job.sbatch ignores the warning.
        heeded = [number for number in _SIGNALS if number == WARNING or signal.getsignal(number) != signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in heeded}
        os.write(self._write, bytes(pop_received()))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        try:
            return [number for number in os.read(self._read, 4096) if number in _SIGNALS]
        except BlockingIOError:
            return []


class SentSignals:
    """Signals that code sends: for a launcher in a thread, which must not take those of its process."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def send(self, number: int) -> None:
        os.write(self._write, bytes([number]))

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        try:
            return list(os.read(self._read, 4096))
        except BlockingIOError:
            return []
