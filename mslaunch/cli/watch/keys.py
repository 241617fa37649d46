"""What a terminal sends when keys are pressed, as names of keys. Pure."""

from __future__ import annotations

import re

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
_CONTROLS = {
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
    for found in _PIECE.finditer(data.decode("utf-8", "ignore")):
        text = found[0]
        if text == "\x1b":
            keys.append("escape")
        elif found[1]:
            keys += [_SEQUENCES[found[1]]] if found[1] in _SEQUENCES else []
        elif text in _CONTROLS:
            keys.append(_CONTROLS[text])
        elif text.isprintable():
            keys.append(text)
    return keys
