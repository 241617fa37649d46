"""`--view`: the console of a launch while the view has the screen, and after it was closed."""

from __future__ import annotations

from collections.abc import Callable

from mslaunch.cli.console.screen import Screen
from mslaunch.cli.watch.process import ViewProcess
from mslaunch.cli.watch.terminal import check_terminal
from mslaunch.errors import RequestError

STDOUT = 1


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
        super().__init__(STDOUT)
        self._view = view
        self._is_told = False

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
        self._is_told = True
        self._view.close()
        return was_covered

    @property
    def _is_covered(self) -> bool:
        if self._view.is_open:
            return True
        if not self._is_told:
            self._is_told = True
            how = "was killed" if self._view.was_killed else "is closed"
            super().write(f"mslaunch: the view {how}; the job goes on, Ctrl-C stops it\n")
        return False
