"""This machine: one agent, a child of the launcher."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress

from mslaunch.agent import guard, wire
from mslaunch.errors import RequestError
from mslaunch.hosts import LOCAL, Host
from mslaunch.plan.spec import JobSpec, naming_setting
from mslaunch.transports import prestart
from mslaunch.transports.base import Access, Opened, Transport
from mslaunch.transports.process import ProcessChannel


class LocalTransport(Transport):
    """Jobs on the machine that the command is typed on. There is nothing to ask, and nothing to cut off."""

    name = "local"
    label = "this machine"
    needs_check = False
    can_be_cut_off = False
    shares_environment = True

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
        return Opened([LocalChannel(LOCAL, prestart.take(LOCAL), wire.MAGIC)], hosts)

    def clean_up(self, run_dir: str) -> None:
        guard.end_run(run_dir)


class LocalChannel(ProcessChannel):
    """The process is the agent's guard: when the agent is gone, it ends what that has left, and then itself."""

    def _end_process(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(guard.PATIENCE)
        super()._end_process()


def is_this_machine(hosts: tuple[Host, ...]) -> bool:
    """Tell whether the only host named is the one we are on."""
    return len(hosts) == 1 and hosts[0].name in (LOCAL, "127.0.0.1", "::1") and hosts[0].port is None
