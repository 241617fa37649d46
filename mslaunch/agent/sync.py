"""launch.sync: a child that fetches data before the ranks start, and one that sends data when they have ended."""

from __future__ import annotations

import json
import os

from mslaunch import layout
from mslaunch.agent import processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

    from mslaunch import messages

BEFORE, AFTER = "before", "after"
LONGEST = 4000  # bytes of a reason


class Sync:
    """One run of the copies of a phase, a child like any other: it can be stopped, and dies with the agent."""

    def __init__(self, order: messages.RunOrder, phase: str, env: dict[str, str]) -> None:
        wanted = order["sync"]
        assert wanted is not None
        self.phase = phase
        self._result = os.memfd_create("result")
        ranks = [(one["rank"], one["cwd"]) for one in order["processes"] if one["rank"] is not None]
        what = {
            "phase": phase,
            "moves": wanted["before"] if phase == BEFORE else wanted["after"],
            "endpoint": wanted["endpoint"],
            "ranks": ranks,
            "run_dir": order["run_dir"],
        }
        argv = [wanted["python"], "-m", "mslaunch.runtime.sync", str(self._result), json.dumps(what)]
        paths = [os.path.join(order["run_dir"], layout.ZIP), env.get("PYTHONPATH", "")]
        given = {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        log = os.path.join(order["run_dir"], layout.SYNC_LOG)
        try:
            self.pid = processes.start(argv, given, order["run_dir"], log, keep=self._result)
        except OSError:
            os.close(self._result)
            raise

    def failure(self, how: dict[str, Any]) -> str | None:
        """Return what failed, or None where nothing did."""
        with os.fdopen(self._result, "rb") as file:
            file.seek(0)
            told = file.read(LONGEST).decode(errors="replace")
        if how["code"] == 0:
            return None
        ended = f"signal {how['signal']}" if how["signal"] else f"code {how['code']}"
        return told or f"the copying process ended with {ended}; {layout.SYNC_LOG} has its output"


def is_wanted(order: messages.RunOrder, phase: str) -> bool:
    wanted = order["sync"]
    return wanted is not None and bool(wanted["before"] if phase == BEFORE else wanted["after"])
