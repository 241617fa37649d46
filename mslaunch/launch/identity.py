"""Who a process is: its pid alone is not enough, since pids come round again."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any


def start_time(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def this_process() -> dict[str, Any]:
    pid = os.getpid()
    return {"pid": pid, "start_time": start_time(pid), "host": socket.gethostname(), "boot_id": boot_id()}


def is_here(who: dict[str, Any]) -> bool:
    return bool(who["host"] == socket.gethostname())


def is_alive(who: dict[str, Any]) -> bool:
    """Tell whether the process that `this_process` described is still the one with its pid, on this boot."""
    return bool(who["boot_id"] == boot_id() and start_time(who["pid"]) == who["start_time"])
