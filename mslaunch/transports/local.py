"""This machine: one agent, a child of the launcher."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.hosts import LOCAL, Host
from mslaunch.plan.spec import JobSpec, naming_setting
from mslaunch.shared import guard, wire, work_folder
from mslaunch.shared.processes import is_stopped
from mslaunch.transports import prestart
from mslaunch.transports.base import Access, Opened, Transport
from mslaunch.transports.process import ProcessChannel


class LocalTransport(Transport):
    """Jobs on the machine that the command is typed on. There is nothing to ask, and nothing to cut off."""

    name = "local"
    label = "this machine"
    needs_check = False
    can_be_cut_off = False
    ends_with_launcher = True
    shares_environment = True

    def __init__(self) -> None:
        self._channels: list[LocalChannel] = []

    def is_default(self, named: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
        del environment
        return is_this_machine(named)

    def check_request(self, spec: JobSpec, named: tuple[Host, ...], environment: Mapping[str, str]) -> None:
        del environment
        if named and not is_this_machine(named):
            raise RequestError(
                f"{spec.source('transport')} local, but {naming_setting(spec)} names other hosts. Leave one out."
            )

    def notes(self, spec: JobSpec, environment: Mapping[str, str]) -> tuple[str, ...]:
        del environment
        if spec.launch.master is None or spec.launch.master.startswith(("127.0.0.1", "localhost", "[::1]")):
            return ()
        return (f"{spec.source('master')} has no meaning on one machine; for several nodes, give --nnodes too",)

    def hosts(self, spec: JobSpec, named: tuple[Host, ...], environment: Mapping[str, str]) -> tuple[Host, ...]:
        del spec, environment
        return (Host(LOCAL, "127.0.0.1", named[0].devices if named else (0,)),)

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        del access
        self._channels = [LocalChannel(LOCAL, prestart.take(LOCAL), wire.MAGIC)]
        return Opened(self._channels, hosts)

    def stopped_agents(self) -> Mapping[str, int]:
        return stopped_agents(self._channels)

    def clean_up(self, run_dir: str) -> None:
        guard.end_run(run_dir)
        work_folder.clear_all(run_dir)


class LocalChannel(ProcessChannel):
    """The process is the agent's guard: when the agent is gone, it ends what that has left, and then itself."""

    agent_pid: int | None = None

    def receive(self) -> list[dict[str, Any]] | None:
        messages = super().receive()
        for message in messages or ():
            if message.get("ev") == "hello":
                self.agent_pid = message.get("pid")
        return messages

    def close(self) -> None:
        if not self.is_finished():
            self._process.send_signal(signal.SIGCONT)  # a guard that somebody has stopped
        super().close()

    def _end_process(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(guard.PATIENCE)
        super()._end_process()


def stopped_agents(channels: Iterable[LocalChannel]) -> dict[str, int]:
    """Return the agents behind these channels that a signal has stopped, as host and process."""
    agents = {one.hosts[0]: one.agent_pid for one in channels if one.is_open and one.agent_pid is not None}
    return {host: pid for host, pid in agents.items() if is_stopped(pid)}


def is_this_machine(hosts: tuple[Host, ...]) -> bool:
    """Tell whether the only host named is the one we are on."""
    return len(hosts) == 1 and hosts[0].name in (LOCAL, "127.0.0.1", "::1") and hosts[0].port is None
