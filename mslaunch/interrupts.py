"""Signals before a job has begun: they end the command in one line, never in a traceback.

Loaded before anything else, and therefore with nothing but what Python itself has loaded: `signal` would load more.
"""

import _signal  # type: ignore[import-not-found] # the C module behind signal
import os

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


def keeper(handler: object, code: int) -> object:
    """Return what handles signals once the exit code is decided: the first is ignored, the next ends at once."""
    if handler is not _raise:
        return handler

    def keep(number: int, _: object) -> None:
        if number in _received:
            os._exit(code)
        _received.append(number)

    return keep


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
