"""The messages of ranks and their exit recorders: lines of JSON, checked, since anybody may write them."""

from __future__ import annotations

import json
import os
import signal
import time

from mslaunch.shared import layout

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

    from mslaunch.shared import messages

LONGEST = 1 << 16  # a message is one write of up to 4,096 bytes
MOST_ROWS = 200  # of metrics, in a message
_NUMBER = (int, float)
_MAYBE_INT = (int, type(None))
_MAYBE_TEXT = (str, type(None))
_NOTE = {"rank": (int,), "time": _NUMBER, "message": _MAYBE_TEXT}
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "started": {"rank": _MAYBE_INT, "time": _NUMBER, "child": (int,)},
    "ended": {"rank": _MAYBE_INT, "time": _NUMBER, "code": _MAYBE_INT, "signal": _MAYBE_INT, "crashed": _MAYBE_INT},
    "import": _NOTE,
    "imported": _NOTE,
    "joining": _NOTE,
    "joined": _NOTE,
    "done": _NOTE,
    "error": {**_NOTE, "message": (str,)},
    "metrics": {"rank": (int,), "time": _NUMBER, "rows": (list,)},
    "child-killed": {"rank": (int,), "time": _NUMBER, "child": (int,), "signal": (int,)},
}
"""Every message by its name, with the types that its fields may have; one that is absent counts as None."""
_LARGEST = {"rank": 1 << 31, "time": 1e11, "child": 1 << 31, "code": 255, "signal": 255, "crashed": 255}
_LEAST = {"child": 2}  # 1 is init, and what is below means groups of processes


class MessagePipe:
    """The pipe that ranks and their exit recorders write to; they open it by its path."""

    def __init__(self) -> None:
        self.end, self._write_end = os.pipe()  # it stays open, so that the pipe never ends
        os.set_blocking(self.end, False)
        self.path = f"/proc/{os.getpid()}/fd/{self._write_end}"
        self._messages = RankMessages()

    def read(self) -> list[messages.Message]:
        try:
            return self._messages.feed(os.read(self.end, 1 << 16))
        except OSError:  # nothing has come
            return []


class RankMessages:
    """Takes bytes from the pipe in pieces of any size."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[messages.Message]:
        """Return the messages that are complete; what is none is left out."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST:
            self._partial = b""
        return [message for line in lines if (message := _read(line)) is not None]


def _read(line: bytes) -> Any:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    what = message.get("what") if isinstance(message, dict) else None
    fields = _FIELDS.get(what) if isinstance(what, str) else None
    if fields is None or not all(_is_right(name, message.get(name), kinds) for name, kinds in fields.items()):
        return None
    return {"what": what, **{name: message.get(name) for name in fields}}


def _are_rows(rows: Any) -> bool:
    """Tell whether these are times and values of metrics; which values are right is another matter."""
    return len(rows) <= MOST_ROWS and all(
        type(row) is list and len(row) == 2 and _is_right("time", row[0], _NUMBER) and type(row[1]) is dict
        for row in rows
    )


def _is_right(name: str, value: Any, kinds: tuple[type, ...]) -> bool:
    if type(value) not in kinds:
        return False
    if type(value) is list:
        return _are_rows(value)
    return type(value) not in _NUMBER or bool(_LEAST.get(name, 0) <= value <= _LARGEST[name])


def read_exit_file(log: str) -> tuple[dict[str, Any], float]:
    """How a rank ended, from the exit.json beside its log; one without a right one counts as killed."""
    try:
        with open(os.path.join(os.path.dirname(log), layout.EXIT), "rb") as file:
            ended = json.loads(file.read(LONGEST))
        if all(_is_right(name, ended[name], _FIELDS["ended"][name]) for name in ("code", "signal", "time")):
            return {"code": ended["code"], "signal": ended["signal"]}, ended["time"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {"code": None, "signal": int(signal.SIGKILL)}, time.time()
