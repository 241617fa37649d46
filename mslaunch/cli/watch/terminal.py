"""A terminal in full-screen use: keys come at once, lines are drawn in place, and in the end it is as it was."""

from __future__ import annotations

import os
import re
import termios
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mslaunch.errors import RequestError

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # the other screen, no cursor, no wrapping, empty
LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
KEYS, SCREEN = 0, 1
_LOCAL, _CONTROLS = 3, 6  # in what tcgetattr returns


def check_terminal(what: str, instead: str) -> None:
    """Refuse where there is no terminal to draw on and to read keys from."""
    if not (os.isatty(KEYS) and os.isatty(SCREEN)):
        raise RequestError(f"{what} needs a terminal, and standard input or output is none. {instead}")
    if (kind := os.environ.get("TERM", "")) in ("", "dumb"):
        got = f"TERM={kind} says that this one cannot" if kind else "TERM, which says whether this one can, is not set"
        raise RequestError(
            f"{what} needs a terminal that can move its cursor; {got}. Set TERM=xterm-256color. {instead}"
        )


class Terminal:
    """The terminal of this process, and how it was before."""

    def __init__(self) -> None:
        self._before: list[Any] = termios.tcgetattr(KEYS)
        self._drawn: list[str] = []
        self._is_taken = False
        self._size = (0, 0)

    def enter(self) -> None:
        """Take the screen. Ctrl-C still is a signal; Ctrl-Z is a key, since the screen has to be left first."""
        mode = termios.tcgetattr(KEYS)
        mode[_LOCAL] &= ~(termios.ICANON | termios.ECHO)
        mode[_CONTROLS][termios.VMIN], mode[_CONTROLS][termios.VTIME] = 1, 0
        for key in (termios.VSUSP, termios.VLNEXT, termios.VDISCARD):
            mode[_CONTROLS][key] = b"\0"
        termios.tcsetattr(KEYS, termios.TCSANOW, mode)
        self._is_taken = True
        _write(ENTER)
        self.forget()

    def leave(self, is_taken: bool = False) -> None:
        """Give the screen back, if it was taken: by this process, or by another one that could not do it itself."""
        if not (self._is_taken or is_taken):
            return
        self._is_taken = False
        with suppress(OSError):
            _write(LEAVE)
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(KEYS, termios.TCSANOW, self._before)

    def forget(self) -> None:
        """Have everything drawn again."""
        self._size = (0, 0)

    def draw(self, lines: Sequence[str], size: tuple[int, int]) -> None:
        """Show lines; only what has changed is sent."""
        text = ""
        if size != self._size:
            self._size, self._drawn, text = size, [""] * size[1], "\x1b[2J"
        for at, line in enumerate(lines[: size[1]]):
            if line != self._drawn[at]:
                # Erased before, not after: a cursor that does not wrap stays on the last column.
                text += f"\x1b[{at + 1};1H\x1b[0m\x1b[K{line}\x1b[0m"
                self._drawn[at] = line
        if text:
            _write(text)


def _write(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(SCREEN, data) :]


_SEQUENCES = {
    "[A": "up",
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[5~": "page-up",
    "[6~": "page-down",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[7~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
    "[8~": "end",
}
_CONTROL_KEYS = {
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
    "\x1a": "suspend",
}
_PIECE = re.compile("\x1b(\\[[0-9;?]*[@-~]|O[@-~])|\x1b|[^\x1b]")


def read_keys(data: bytes) -> list[str]:
    """Return the keys in what was read at once: names of special ones, and characters as they are."""
    keys = []
    for match in _PIECE.finditer(data.decode("utf-8", "ignore")):
        text = match[0]
        if text == "\x1b":
            keys.append("escape")
        elif match[1]:
            keys += [_SEQUENCES[match[1]]] if match[1] in _SEQUENCES else []
        elif text in _CONTROL_KEYS:
            keys.append(_CONTROL_KEYS[text])
        elif text.isprintable():
            keys.append(text)
    return keys
