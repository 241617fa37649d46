"""What a host does before its ranks start: the commands of launch.setup, then the data of launch.sync."""

from __future__ import annotations

import json
import os

from mslaunch.shared import layout, processes

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mslaunch.agent.launcher_stream import LauncherStream
    from mslaunch.shared import messages


_FIXED = ("MSLAUNCH_", "MS_SCHED", "MS_WORKER", "MS_ROLE", "MS_NODE", "RANK_")


class SetUp:
    """One run of the set-up commands, a child like any other: it can be stopped, and dies with the agent."""

    def __init__(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        self.log = os.path.join(order["run_dir"], layout.SETUP_LOG)
        self._result = os.memfd_create("environment")  # not a file: an environment may hold secrets
        script = f"{{ {order['setup']}\n}} >&2 </dev/null && env -0 >&{self._result}"
        argv = ["bash", "-c", script]
        given = {**env, **order["env"], **order["secrets"]}
        try:
            self.pid = processes.start(argv, given, order["run_dir"], self.log, keep=self._result)
        except OSError:
            os.close(self._result)
            raise
        self._given = order["env"]

    def environment(self) -> dict[str, str] | None:
        """Return what the commands left, or None where they left before they could tell (`exit 0`).

        What the plan gives every rank may be changed here (PYTHONPATH, say), except for what makes a rank a rank.
        """
        with os.fdopen(self._result, "rb") as file:
            file.seek(0)
            text = os.fsdecode(file.read())
        pairs = (item.partition("=") for item in text.split("\0") if item)
        left = {name: value for name, _, value in pairs}
        return (
            {**left, **{name: value for name, value in self._given.items() if name.startswith(_FIXED)}}
            if left
            else None
        )


LONGEST = 4000  # bytes of a reason


class DataSync:
    """Fetches once in the life of the agent, and sends once after the ranks of each attempt."""

    def __init__(self, output: LauncherStream, fetch_ended: Callable[[str | None], None]) -> None:
        self.env: dict[str, str] = {}
        self._output = output
        self._fetch_ended = fetch_ended
        self._is_fetched = False
        self._to_send: messages.RunOrder | None = None
        self._copies: Copies | None = None

    @property
    def is_copying(self) -> bool:
        return self._copies is not None

    def fetch(self, order: messages.RunOrder, env: dict[str, str]) -> bool:
        """Begin to fetch what is to be there before the ranks; return whether there is anything to wait for."""
        self.env, self._to_send = env, None
        if self._is_fetched or order["sync"] is None or not order["sync"]["before"]:
            return False
        self._copies = Copies(order, order["sync"], "before", env)
        return True

    def ranks_start(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        """From now on there may be something to send."""
        self.env = env
        self._to_send = order if order["sync"] is not None and order["sync"]["after"] else None

    def send(self) -> bool:
        """Begin to send what ranks have left; return whether there is anything to wait for."""
        order, self._to_send = self._to_send, None
        if order is None or order["sync"] is None:
            return False
        try:
            self._copies = Copies(order, order["sync"], "after", self.env)
        except OSError as error:
            self._note(error.strerror or str(error))
        return self.is_copying

    def reaped(self, pid: int, status: int) -> None:
        """Notice the end of the child, if it is the one."""
        copies = self._copies
        if copies is None or copies.pid != pid:
            return
        self._copies = None
        why = copies.failure(processes.outcome(status))
        if copies.phase == "before":
            self._is_fetched = why is None
            self._fetch_ended(why)
        elif why is not None:
            self._note(why)

    def _note(self, why: str) -> None:
        self._output.event("agent-note", text=f"launch.sync did not send everything, nothing is deleted: {why}")


class Copies:
    """The copies of one phase, in a child like any other: it can be stopped, and dies with the agent."""

    def __init__(self, order: messages.RunOrder, sync: messages.SyncOrder, phase: str, env: dict[str, str]) -> None:
        self.phase = phase
        self._result = os.memfd_create("result")
        what = {
            "phase": phase,
            "moves": sync["before"] if phase == "before" else sync["after"],
            "endpoint": sync["endpoint"],
            "ranks": [(one["rank"], one["cwd"]) for one in order["processes"] if one["rank"] is not None],
            "run_dir": order["run_dir"],
        }
        argv = [sync["python"], "-m", "mslaunch.runtime.sync", str(self._result), json.dumps(what)]
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


class Preparation:
    """Runs one child after the other, and calls `start` with the environment of the ranks when none is left."""

    def __init__(
        self, output: LauncherStream, start: Callable[[dict[str, str]], None], is_stopping: Callable[[], bool]
    ) -> None:
        self.sync = DataSync(output, self._fetch_ended)
        self._output = output
        self._start = start
        self._is_stopping = is_stopping
        self._order: messages.RunOrder
        self._setup: SetUp | None = None

    @property
    def is_running(self) -> bool:
        return self._setup is not None or self.sync.is_copying

    def begin(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        """Start with the set-up commands, where there are any."""
        self._order = order
        if not order["setup"]:
            self._fetch({**env, **order["env"]})
            return
        try:
            self._setup = SetUp(order, env)
        except OSError as error:
            start_failed(self._output, "launch.setup", None, error)

    def reaped(self, pid: int, status: int) -> None:
        """Notice the end of a child, if it is one of these."""
        if self._setup is not None and self._setup.pid == pid:
            setup, self._setup = self._setup, None
            self._setup_ended(setup, processes.outcome(status)["code"])
        self.sync.reaped(pid, status)

    def _setup_ended(self, setup: SetUp, code: int | None) -> None:
        env = setup.environment() if code == 0 else None
        if self._is_stopping():
            return
        if env is None:
            self._output.event("setup-failed", code=code, log=setup.log)
        else:
            self._fetch(env)

    def _fetch(self, env: dict[str, str]) -> None:
        try:
            is_fetching = self.sync.fetch(self._order, {**env, **self._order["secrets"]})
        except OSError as error:
            start_failed(self._output, "launch.sync", None, error)
        else:
            if not is_fetching:
                self._start(env)

    def _fetch_ended(self, why: str | None) -> None:
        if self._is_stopping():
            return
        if why is None:
            self._start(self.sync.env)
        else:
            self._output.event("sync-failed", why=why)


def start_failed(output: LauncherStream, role: str, rank: int | None, error: OSError) -> None:
    output.event("start-failed", role=role, rank=rank, why=error.strerror or str(error))
