"""What a rank tells: short messages to its host's agent, error.json for everyone."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing itself costs every rank 10 ms
if TYPE_CHECKING:
    from typing import Any

_MESSAGE_LIMIT = 2000  # one write of up to 4,096 bytes into a pipe is never torn


def tell(what: str, **data: Any) -> None:
    """Send one message to the agent, if there is one; a rank never waits for it."""
    path = os.environ.get("MSLAUNCH_AGENT")
    if not path:
        return
    import json

    data.update(what=what, pid=os.getpid(), time=time.time())
    data.setdefault("rank", _rank())
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(pipe, json.dumps(data).encode() + b"\n")
    except OSError:
        pass
    finally:
        os.close(pipe)


def write_json(path: str, data: Any) -> None:
    """Write a file that others read while it is written: beside it first, then renamed."""
    import json

    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")
    os.replace(beside, path)


def record_error(error: BaseException, traceback: Any, thread: str | None = None) -> str:
    """Write error.json and return its message."""
    import traceback as tracebacks

    text = "".join(tracebacks.format_exception(type(error), error, traceback))
    summary = "".join(tracebacks.format_exception_only(type(error), error)).strip()
    data = {
        "rank": _rank(),
        "host": os.environ.get("MSLAUNCH_HOST"),
        "pid": os.getpid(),
        "time": time.time(),
        "type": type(error).__name__,
        "message": summary,
        "traceback": text,
        "thread": thread,
    }
    try:
        write_json(os.path.join(rank_dir(), "error.json"), data)
    except OSError:
        pass  # a full disk must not hide the error itself
    return summary[-_MESSAGE_LIMIT:]


def rank_dir() -> str:
    return os.path.join(os.environ["MSLAUNCH_RUN_DIR"], "rank_" + os.environ["RANK_ID"])


def _rank() -> int | None:
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return None
    return int(os.environ["RANK_ID"])
