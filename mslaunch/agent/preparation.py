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
        """Return what the child has left, once it has ended."""
        with os.fdopen(self._answer, "rb") as file:
            file.seek(0)
            return file.read()


def _start_setup(order: messages.RunOrder, env: dict[str, str]) -> AnsweringChild:
    def argv(answer: int) -> list[str]:
        return ["bash", "-c", f"{{ {order['setup']}\n}} >&2 </dev/null && env -0 >&{answer}"]

    return AnsweringChild(argv, {**env, **order["env"], **order["secrets"]}, order["run_dir"], layout.SETUP_LOG)


def _read_environment(answer: bytes, planned: dict[str, str]) -> dict[str, str] | None:
    """Return what the set-up commands left, or None where they ended before they could (`exit 0`).

    They may change what the plan gives every rank (PYTHONPATH, say), except for what makes a rank a rank.
    """
    environment = {}
    for pair in filter(None, os.fsdecode(answer).split("\0")):
        name, _, value = pair.partition("=")
        environment[name] = value
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


class DataSync:
    """Fetches once in the life of the agent, and sends once after the ranks of each attempt."""

    def __init__(self, output: LauncherStream, fetch_ended: Callable[[str | None], None]) -> None:
        self.env: dict[str, str] = {}
        self._output = output
        self._fetch_ended = fetch_ended
        self._is_fetched = False
        self._to_send: messages.RunOrder | None = None
        self._copies: AnsweringChild | None = None
        self._phase = "before"

    @property
    def is_copying(self) -> bool:
        return self._copies is not None

    def fetch(self, order: messages.RunOrder, env: dict[str, str]) -> bool:
        """Begin to fetch what is to be there before the ranks; return whether there is anything to wait for."""
        self.env, self._to_send = env, None
        if self._is_fetched or order["sync"] is None or not order["sync"]["before"]:
            return False
        self._phase = "before"
        self._copies = _start_copies(order, order["sync"], self._phase, env)
        return True

    def ranks_start(self, order: messages.RunOrder, env: dict[str, str]) -> None:
        """From now on there may be something to send."""
        self.env = env
        if order["sync"] is not None and order["sync"]["after"]:
            self._to_send = order

    def send(self) -> bool:
        """Begin to send what ranks have left; return whether there is anything to wait for."""
        order, self._to_send = self._to_send, None
        if order is None or order["sync"] is None:
            return False
        self._phase = "after"
        try:
            self._copies = _start_copies(order, order["sync"], self._phase, self.env)
        except OSError as error:
            self._not_sent(error.strerror or str(error))
        return self.is_copying

    def reaped(self, pid: int, status: int) -> None:
        """Notice the end of the copying process."""
        copies = self._copies
        if copies is None or copies.pid != pid:
            return
        self._copies = None
        why = _copy_failure(copies.answer(), processes.outcome(status))
        if self._phase == "before":
            self._is_fetched = why is None
            self._fetch_ended(why)
        elif why is not None:
            self._not_sent(why)

    def _not_sent(self, why: str) -> None:
        self._output.note(f"launch.sync did not send everything, nothing is deleted: {why}")


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
        self._setup: AnsweringChild | None = None
        self._locks: DeviceLocks | None = None

    @property
    def is_running(self) -> bool:
        return self._setup is not None or self.sync.is_copying

    def begin(self, order: messages.RunOrder) -> None:
        """Take the devices, then start the set-up commands, where there are any."""
        self._order = order
        held = self._take_devices(order)
        if held:
            self._output.event("devices-held", held=held)
            return
        env = {name: value for name, value in os.environ.items() if name not in order["unset"]}
        if not order["setup"]:
            self._fetch({**env, **order["env"]})
            return
        try:
            self._setup = _start_setup(order, env)
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
        """Notice the end of a child, if it is one of these."""
        if self._setup is not None and self._setup.pid == pid:
            setup, self._setup = self._setup, None
            self._setup_ended(setup, processes.outcome(status)["code"])
        self.sync.reaped(pid, status)

    def _setup_ended(self, setup: AnsweringChild, code: int | None) -> None:
        env = _read_environment(setup.answer(), self._order["env"])
        if self._is_stopping():
            return
        if env is None or code != 0:
            self._output.event("setup-failed", code=code, log=setup.log)
        else:
            self._fetch(env)

    def _fetch(self, env: dict[str, str]) -> None:
        try:
            is_fetching = self.sync.fetch(self._order, {**env, **self._order["secrets"]})
        except OSError as error:
            self._output.start_failed("launch.sync", None, error)
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
