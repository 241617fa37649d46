"""Was it the kernel? Tells whether a killed process was a victim of the out-of-memory killer."""

from __future__ import annotations

import os


def oom_kills() -> int:
    """Return how many processes this machine has killed for lack of memory since it was started."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def was_out_of_memory(pid: int, before: int) -> bool:
    """Tell whether the kernel killed this process for lack of memory: by name in its log, else by its counter."""
    if oom_kills() <= before:
        return False
    log = _kernel_log()
    return log is None or f"Killed process {pid} " in log


def _kernel_log() -> str | None:
    """Return the kernel's log, or None where it may not be read."""
    try:
        end = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records = []
    try:
        while True:
            try:
                records.append(os.read(end, 8192))
            except BrokenPipeError:  # this record was overwritten while we read; go on with the next
                continue
            except OSError:
                break
    finally:
        os.close(end)
    return b"\n".join(records).decode("utf-8", "replace")
