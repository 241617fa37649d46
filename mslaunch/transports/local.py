"""This machine: one agent, a child of the launcher."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from mslaunch.errors import RequestError
from mslaunch.hosts import LOCAL, Host, is_this_machine
from mslaunch.plan.spec import naming_setting
from mslaunch.shared import guard, wire, work_folder
from mslaunch.shared.processes import is_stopped
from mslaunch.transports import prestart
from mslaunch.transports.base import Access, JobContext, Opened, Transport
from mslaunch.transports.process import ProcessChannel


class LocalTransport(Transport):
    """Jobs on the machine that the command is typed on. There is nothing to ask, and nothing to cut off."""

    name = "local"
    label = "this machine"
    needs_check = False
    can_be_cut_off = False
    ends_with_launcher = True
    shares_environment = True

    _channels: Sequence[LocalChannel] = ()

    def check_request(self, job: JobContext) -> None:
        spec = job.spec
        if job.hosts and not is_this_machine(job.hosts):
            raise RequestError(
                f"{spec.sources['transport']} local, but {naming_setting(spec)} names other hosts. Leave one out."
            )

    def notes(self, job: JobContext) -> tuple[str, ...]:
        spec = job.spec
        if spec.launch.master is None or spec.launch.master.startswith(("127.0.0.1", "localhost", "[::1]")):
            return ()
        return (f"{spec.sources['master']} has no meaning on one machine; for several nodes, give --nnodes too",)

    def hosts(self, job: JobContext) -> tuple[Host, ...]:
        devices = job.hosts[0].devices if job.hosts else (0,)
        return (Host(LOCAL, "127.0.0.1", devices),)

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
    stopped = {}
    for channel in channels:
        if channel.is_open and channel.agent_pid is not None and is_stopped(channel.agent_pid):
            stopped[channel.hosts[0]] = channel.agent_pid
    return stopped
