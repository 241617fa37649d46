"""What a host does before its ranks start: takes devices, runs launch.setup, fetches the data of launch.sync."""

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
    from mslaunch.shared.device_locks import DeviceLocks

_FIXED = ("MSLAUNCH_", "MS_SCHED", "MS_WORKER", "MS_ROLE", "MS_NODE", "RANK_")
LONGEST_REASON = 4000  # bytes


class AnsweringChild:
    """A child that can be stopped, dies with the agent, and leaves its answer in an open file.

    Not in a file of a folder: an environment may hold secrets.
    """

    def __init__(self, argv: Callable[[int], list[str]], env: dict[str, str], run_dir: str, log: str) -> None:
        self.log = os.path.join(run_dir, log)
        self._answer = os.memfd_create("answer")
        try:
            self.pid = processes.start(argv(self._answer), env, run_dir, self.log, keep=self._answer)
        except OSError:
            os.close(self._answer)
            raise

    def answer(self) -> bytes:
        with os.fdopen(self._answer, "rb") as file:
            file.seek(0)
            return file.read()


def _read_environment(answer: bytes, planned: dict[str, str]) -> dict[str, str] | None:
    """Return what the set-up commands left, or None where they ended before they could (`exit 0`).

    They may change what the plan gives every rank (PYTHONPATH, say), except for what makes a rank a rank.
    """
    environment = processes.parse_environment(answer)
    if not environment:
        return None
    environment.update({name: value for name, value in planned.items() if name.startswith(_FIXED)})
    return environment


def _start_copies(
    order: messages.RunOrder, sync: messages.SyncOrder, phase: str, env: dict[str, str]
) -> AnsweringChild:
    request = {
        "phase": phase,
        "moves": sync["before"] if phase == "before" else sync["after"],
        "endpoint": sync["endpoint"],
        "ranks": [(process["rank"], process["cwd"]) for process in order["processes"] if process["rank"] is not None],
        "run_dir": order["run_dir"],
    }

    def argv(answer: int) -> list[str]:
        return [sync["python"], "-m", "mslaunch.runtime.sync", str(answer), json.dumps(request)]

    paths = [os.path.join(order["run_dir"], layout.ZIP), env.get("PYTHONPATH", "")]
    env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return AnsweringChild(argv, env, order["run_dir"], layout.SYNC_LOG)


def _copy_failure(answer: bytes, outcome: dict[str, Any]) -> str | None:
    """Return what was not copied, or None where everything was."""
    if outcome["code"] == 0:
        return None
    if answer:
        return answer[:LONGEST_REASON].decode(errors="replace")
    end = f"signal {outcome['signal']}" if outcome["signal"] else f"code {outcome['code']}"
    return f"the copying process ended with {end}; {layout.SYNC_LOG} has its output"


class Preparation:
    """Runs one child after the other, and calls `start` with the environment of the ranks when none is left.

    The children are launch.setup, and the copies of launch.sync before the ranks, once in the life of the agent; copies
    after the ranks of an attempt follow when these have ended.
    """

    def __init__(
        self, output: LauncherStream, start: Callable[[dict[str, str]], None], is_stopping: Callable[[], bool]
    ) -> None:
        self._output = output
        self._start = start
        self._is_stopping = is_stopping
        self._order: messages.RunOrder
        self._env: dict[str, str] = {}
        self._child: AnsweringChild | None = None
        self._ended: Callable[[AnsweringChild, dict[str, Any]], None]
        self._is_fetched = False
        self._has_started = False
        self._locks: DeviceLocks | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None

    def begin(self, order: messages.RunOrder) -> None:
        """Take the devices, then start the set-up commands, where there are any."""
        self._order, self._has_started = order, False
        held = self._take_devices(order)
        if held:
            self._output.event("devices-held", held=held)
            return
        env = {name: value for name, value in os.environ.items() if name not in order["unset"]}
        env.update(order["env"])
        if not order["setup"]:
            self._fetch(env)
            return

        def argv(answer: int) -> list[str]:
            return ["bash", "-c", f"{{ {order['setup']}\n}} >&2 </dev/null && env -0 >&{answer}"]

        try:
            self._child = AnsweringChild(argv, {**env, **order["secrets"]}, order["run_dir"], layout.SETUP_LOG)
            self._ended = self._setup_ended
        except OSError as error:
            self._output.start_failed("launch.setup", None, error)

    def _take_devices(self, order: messages.RunOrder) -> dict[int, str]:
        """Keep other runs off the devices of these ranks; return those that other runs keep us off."""
        stem = order["device_files"]
        if stem is None:
            return {}
        from mslaunch.shared.device_locks import DeviceLocks
        from mslaunch.shared.visible_devices import environment_of_ranks

        self._locks = self._locks or DeviceLocks()
        devices = {process["device_id"] for process in order["processes"] if process["rank"] is not None}
        numbers = sorted(device for device in devices if device is not None)
        held = self._locks.take(stem, numbers, environment_of_ranks(order), os.path.basename(order["run_dir"]))
        if self._locks.problem:
            problem = self._locks.problem
            self._output.note(f"its devices have no lock, so other runs may use them at the same time: {problem}")
        return held

    def reaped(self, pid: int, status: int) -> None:
        """Notice the end of a child, if it is the one that is waited for."""
        child = self._child
        if child is not None and child.pid == pid:
            self._child = None
            self._ended(child, processes.outcome(status))

    def _setup_ended(self, setup: AnsweringChild, outcome: dict[str, Any]) -> None:
        env = _read_environment(setup.answer(), self._order["env"])
        if self._is_stopping():
            return
        if env is None or outcome["code"] != 0:
            self._output.event("setup-failed", code=outcome["code"], log=setup.log)
        else:
            self._fetch(env)

    def _fetch(self, env: dict[str, str]) -> None:
        """Fetch what is to be there before the ranks, then have these started."""
        self._env = {**env, **self._order["secrets"]}
        sync = self._order["sync"]
        if self._is_fetched or sync is None or not sync["before"]:
            self._start_ranks()
            return
        try:
            self._child = _start_copies(self._order, sync, "before", self._env)
            self._ended = self._fetch_ended
        except OSError as error:
            self._output.start_failed("launch.sync", None, error)

    def _fetch_ended(self, copies: AnsweringChild, outcome: dict[str, Any]) -> None:
        why = _copy_failure(copies.answer(), outcome)
        self._is_fetched = why is None
        if self._is_stopping():
            return
        if why is None:
            self._start_ranks()
        else:
            self._output.event("sync-failed", why=why)

    def _start_ranks(self) -> None:
        self._has_started = True
        self._start(self._env)

    def send(self) -> bool:
        """Begin to send what ranks have left, once per attempt; return whether there is anything to wait for."""
        if not self._has_started:
            return False
        self._has_started = False
        sync = self._order["sync"]
        if sync is None or not sync["after"]:
            return False
        try:
            self._child = _start_copies(self._order, sync, "after", self._env)
            self._ended = self._sending_ended
        except OSError as error:
            self._report_unsent(error.strerror or str(error))
        return self.is_running

    def _sending_ended(self, copies: AnsweringChild, outcome: dict[str, Any]) -> None:
        why = _copy_failure(copies.answer(), outcome)
        if why is not None:
            self._report_unsent(why)

    def _report_unsent(self, why: str) -> None:
        self._output.note(f"launch.sync did not send everything, nothing is deleted: {why}")
