"""What the files of a rank tell its agent: when it last wrote something, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import time

from mslaunch import layout

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any


def last_written(log: str) -> float:
    try:
        return os.stat(log).st_mtime
    except OSError:
        return 0.0


def read_exit(log: str) -> tuple[dict[str, Any], float]:
    try:
        with open(os.path.join(os.path.dirname(log), layout.EXIT), encoding="utf-8") as file:
            ended = json.load(file)
        return {"code": ended["code"], "signal": ended["signal"]}, ended["time"]
    except (OSError, ValueError, KeyError):
        return {"code": None, "signal": int(signal.SIGKILL)}, time.time()
