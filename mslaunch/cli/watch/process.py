"""The view in a process of its own: whatever ends it, the process above gives the terminal back, and goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from mslaunch.cli.console.console import Screen
from mslaunch.cli.watch.terminal import SCREEN, Terminal, check_terminal
from mslaunch.errors import MslaunchError, RequestError, signal_code
from mslaunch.run.find import find_run

PATIENCE = 5  # seconds that a view gets to leave the screen
FAILED = 1


class ViewProcess:
    """This process in two, before it has threads or hosts: whoever calls goes on, and the other one draws.

    The pipe between them carries the run's folder. Its end ends the view, so a killed parent leaves none behind.
    """

    def __init__(self, is_launchers: bool) -> None:
        self._terminal = Terminal()
        sys.stdout.flush()
        sys.stderr.flush()
        read, self._write = os.pipe()
        self._status: int | None = None
        self._child = os.fork()
        if self._child == 0:
            os.close(self._write)
            _show(read, self._terminal, is_launchers)
        os.close(read)

    def show(self, folder: Path) -> None:
        """Have a run shown, from now on."""
        with suppress(BrokenPipeError):
            os.write(self._write, os.fsencode(folder) + b"\0")

    def cover(self, folder: Path) -> Screen:
        """Have a run shown; return the screen behind the view."""
        self.show(folder)
        return ScreenBehindView(self)

    @property
    def is_open(self) -> bool:
        """Tell whether the screen is the view's."""
        if self._status is None:
            self._note(os.waitpid(self._child, os.WNOHANG))
        return self._status is None

    def wait(self) -> int:
        """Wait until somebody has quit; return the exit code. A signal ends the view, and gives its own code."""
        ended_by: list[int] = []

        def end(number: int, _: FrameType | None) -> None:
            """Only enqueue: an exception here could come between the child's end and its status."""
            if not ended_by:
                ended_by.append(number)
                os.close(self._write)
                signal.alarm(PATIENCE)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, end)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(self._child, signal.SIGKILL))
        self._note(os.waitpid(self._child, 0))
        signal.alarm(0)
        if ended_by:
            return signal_code(ended_by[0])
        if self.was_killed:
            print("mslaunch: the view was killed; the run goes on", file=sys.stderr)
        code = os.waitstatus_to_exitcode(self._status or 0)
        return code if code >= 0 else signal_code(-code)

    def close(self) -> None:
        """End the view, and wait until the terminal is as it was."""
        with suppress(OSError):
            os.close(self._write)
        until = time.monotonic() + PATIENCE
        while self.is_open:
            if time.monotonic() > until:
                os.kill(self._child, signal.SIGKILL)
                self._note(os.waitpid(self._child, 0))
            time.sleep(0.005)

    @property
    def was_killed(self) -> bool:
        return self._status is not None and os.WIFSIGNALED(self._status)

    def _note(self, ended: tuple[int, int]) -> None:
        if ended[0] == self._child:
            self._status = ended[1]
            if self.was_killed:
                self._terminal.leave(is_taken=True)


def _show(above: int, terminal: Terminal, is_launchers: bool) -> None:
    """The process that draws: it never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code, report, errors = FAILED, "", os.dup(2)
    try:
        folder = b""
        while not folder.endswith(b"\0"):
            piece = os.read(above, 4096)
            if not piece:
                os._exit(0)
            folder += piece
        from mslaunch.cli.watch.loop import RunView

        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings would stand in the middle of the screen
        run = find_run(os.fsdecode(folder[:-1]))
        code = RunView(run, terminal, above, is_launchers).show()
    except MslaunchError as error:
        code, report = error.exit_code, f"mslaunch: {error}\n"
    except OSError as error:  # the terminal is gone
        code, report = signal_code(signal.SIGHUP), f"mslaunch: the view has ended: {error}\n"
    except BaseException:
        report = traceback.format_exc()
    finally:
        terminal.leave()
        with suppress(OSError):
            os.write(errors, report.encode("utf-8", "replace"))
        os._exit(code)


def start_view(**excluded: bool) -> ViewProcess:
    """Start the view of a run that is still to be made; `excluded` are options that do not go with it."""
    for name, is_given in excluded.items():
        if is_given:
            raise RequestError(f"--view and --{name} do not go together. Leave one of them out.")
    check_terminal("--view", "Leave it out for plain lines.")
    return ViewProcess(is_launchers=True)


class ScreenBehindView(Screen):
    """Shows nothing while the view has the screen; what ranks print is in the view, and notes are in the record."""

    def __init__(self, view: ViewProcess) -> None:
        super().__init__(SCREEN)
        self._view = view
        self._is_reported = False

    @property
    def is_behind(self) -> bool:
        """Live lines are not drawn below the view."""
        return self._is_covered or super().is_behind

    def write(self, text: str, then: Callable[[], object] | None = None) -> None:
        if not self._is_covered:
            super().write(text, then)
        elif then is not None:
            then()

    def uncover(self) -> bool:
        """End the view, as the run has ended; return whether it was there until now."""
        was_covered = self._is_covered
        self._is_reported = True
        self._view.close()
        return was_covered

    @property
    def _is_covered(self) -> bool:
        if self._view.is_open:
            return True
        if not self._is_reported:
            self._is_reported = True
            how = "was killed" if self._view.was_killed else "is closed"
            super().write(f"mslaunch: the view {how}; the job goes on, Ctrl-C stops it\n")
        return False
