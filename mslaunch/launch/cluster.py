"""The connected hosts of a job: their channels, which of them share our folder, and how far their clocks are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mslaunch.launch.check import Checked, Wanted, check_hosts
from mslaunch.launch.transport import Channel, LocalChannel
from mslaunch.plan.hosts import LOCAL
from mslaunch.plan.model import Host


@dataclass(frozen=True, slots=True)
class Cluster:
    """Agents that are ready for orders."""

    channels: Sequence[Channel]
    remote: frozenset[str] = frozenset()
    """Hosts that do not see this machine's run folder: code is sent there, and logs are collected."""
    skew: Mapping[str, float] = field(default_factory=dict)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


@dataclass(frozen=True, slots=True)
class Access:
    """How hosts are reached."""

    python: str
    accept_new_keys: bool = False


def open_ssh(hosts: Sequence[Host], access: Access) -> list[Channel]:
    from mslaunch.launch import ssh  # paramiko takes a third of a second to load

    return list(ssh.open_ssh(hosts, access.python, access.accept_new_keys))


def open_slurm(hosts: Sequence[Host], access: Access) -> list[Channel]:
    from mslaunch.launch.slurm import SrunChannel

    return [SrunChannel(hosts, access.python)]


TRANSPORTS: dict[str, Callable[[Sequence[Host], Access], list[Channel]]] = {
    "ssh": open_ssh,
    "slurm": open_slurm,
}


def this_machine() -> Cluster:
    """The one host of a job that stays here; there is nothing to ask."""
    return Cluster([LocalChannel(LOCAL)])


def connect(transport: str, hosts: Sequence[Host], access: Access, wanted: Wanted) -> tuple[Cluster, Checked]:
    """Start an agent on every host and check them all; the cluster is for whoever finds nothing amiss."""
    channels = TRANSPORTS[transport](hosts, access)
    # What a name of ~/.ssh/config stands for is known only now.
    addresses = {channel.hosts[0]: getattr(channel, "address", None) for channel in channels}
    hosts = [replace(host, address=addresses.get(host.name) or host.address) for host in hosts]
    try:
        checked = check_hosts(channels, hosts, wanted)
    except BaseException:
        Cluster(channels).close()
        raise
    remote = frozenset(name for name, report in checked.reports.items() if not report.shared)
    return Cluster(channels, remote, {name: report.skew for name, report in checked.reports.items()}), checked
