"""The view of a run: keys and news in, screens out, until somebody quits or the launcher says that it is over."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from mslaunch.cli.console.console import window_size
from mslaunch.cli.watch.choices import Choices, Room, chosen_rank, press
from mslaunch.cli.watch.frame import draw
from mslaunch.cli.watch.reader import ReadingThread
from mslaunch.cli.watch.terminal import KEYS, SCREEN, Terminal, read_keys
from mslaunch.errors import MslaunchError, signal_code
from mslaunch.run.record import ENDED
from mslaunch.run.run import Run
from mslaunch.text import first_line

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Wake:
    """A pipe that wakes the loop: signals write their numbers into it, threads a zero."""

    def __init__(self) -> None:
        self.end, self._write = os.pipe()
        os.set_blocking(self.end, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, lambda *_: None)

    def call(self) -> None:
        with suppress(BlockingIOError):  # then it wakes anyway
            os.write(self._write, b"\0")

    def read(self) -> set[int]:
        try:
            return set(os.read(self.end, 4096))
        except BlockingIOError:
            return set()


class RunView:
    """One run on one terminal. `is_launchers`: the process above carries the run out, and tells when it has ended."""

    def __init__(self, run: Run, terminal: Terminal, above: int, is_launchers: bool) -> None:
        self._run = run
        self._terminal = terminal
        self._above = above
        self._is_launchers = is_launchers
        self._wake = Wake()
        self._reading = ReadingThread(run, self._wake.call)
        self._now = Choices()
        self._room = Room()
        self._told: list[Callable[[Choices], Choices]] = []
        self._code: int | None = None

    def show(self) -> int:
        """Show the run until somebody quits; return the exit code."""
        self._terminal.enter()
        while self._code is None:
            self._draw()
            ready, _, _ = select.select([KEYS, self._wake.end, self._above], [], [])
            if self._above in ready:  # whoever started the view has ended, or wants it to
                return 0
            if self._wake.end in ready:
                self._receive(self._wake.read())
            if KEYS in ready and self._code is None:
                self._read_keys()
        return self._code

    def _receive(self, numbers: set[int]) -> None:
        if signal.SIGWINCH in numbers or signal.SIGCONT in numbers:
            self._terminal.forget()
        if signal.SIGTSTP in numbers:
            self._suspend()
        ignored = {signal.SIGINT} if self._is_launchers else set()  # the launcher gets it too, and stops the job
        for number in ENDING:
            if number in numbers - ignored:
                self._code = signal_code(number)

    def _read_keys(self) -> None:
        try:
            data = os.read(KEYS, 4096)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._code = signal_code(signal.SIGHUP)
            return
        for key in read_keys(data):
            self._press(key)

    def _press(self, key: str) -> None:
        overview = self._reading.overview
        has_ended = overview.record.state in ENDED
        asks = self._is_launchers and not has_ended
        self._now, action = press(self._now, key, overview, self._room, asks)
        if action == "quit":
            self._code = 0
        elif action == "suspend":
            self._suspend()
        elif action == "redraw":
            self._terminal.forget()
        elif action == "stop":
            self._do("stopping all ranks ...", self._stop)
        elif action == "stacks":
            self._do("", self._take_stacks)

    def _do(self, message: str, work: Callable[[], Callable[[Choices], Choices]]) -> None:
        """Do something that takes time in a thread; what it returns changes the choices once it is done."""
        self._now = replace(self._now, message=message)

        def run() -> None:
            try:
                change = work()
            except (MslaunchError, OSError) as error:
                change = _tell(first_line(str(error)))
            except BaseException as error:
                change = _raise(error)
            self._told.append(change)
            self._wake.call()

        threading.Thread(target=run, daemon=True).start()

    def _stop(self) -> Callable[[Choices], Choices]:
        return _tell(f"the run is {self._run.stop().state}")

    def _take_stacks(self) -> Callable[[Choices], Choices]:
        try:
            lines = [line for group in self._run.stacks() for line in (*group.splitlines(), "")]
        except MslaunchError as error:
            lines = str(error).splitlines()
        return lambda now: replace(now, stacks=tuple(lines))

    def _suspend(self) -> None:
        """Leave the screen, then stop, and with us whoever started us: the shell must find its screen as it was."""
        self._terminal.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, lambda *_: None)
        self._terminal.enter()

    def _draw(self) -> None:
        if self._reading.defect is not None:
            raise self._reading.defect
        while self._told:
            self._now = self._told.pop(0)(self._now)
        overview, size = self._reading.overview, window_size(SCREEN)
        now = replace(self._now, message=first_line(self._reading.error)) if self._reading.error else self._now
        lines, self._room = draw(overview, now, *size, datetime.now().astimezone())
        self._terminal.draw(lines, size)
        self._reading.want(chosen_rank(overview, self._now))


def _raise(error: BaseException) -> Callable[[Choices], Choices]:
    def change(_: Choices) -> Choices:
        raise error

    return change


def _tell(message: str) -> Callable[[Choices], Choices]:
    return lambda now: replace(now, message=message)
