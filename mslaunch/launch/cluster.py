"""The connected hosts of a job: their channels, which of them share our folder, and how far their clocks are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mslaunch.errors import HostsNotReady
from mslaunch.hosts import Host
from mslaunch.launch.check import Checked, Requirements, check_hosts
from mslaunch.transports.base import Access, Channel, Transport
from mslaunch.transports.streams import close_all


@dataclass(frozen=True, slots=True)
class Cluster:
    """Agents that are ready for orders."""

    transport: Transport
    channels: Sequence[Channel]
    remote: frozenset[str] = frozenset()
    """Hosts that do not see this machine's run folder: code is sent there, and logs are collected."""
    skew: Mapping[str, float] = field(default_factory=dict)
    """How far the clock of each host is ahead of this machine's, in seconds."""
    clock_errors: Mapping[str, float] = field(default_factory=dict)
    """By how many seconds each of these may be wrong."""

    def close(self) -> None:
        """End all agents, and whatever they still run."""
        for channel in self.channels:
            channel.send({"to": "*", "do": "bye"})
        close_all(self.channels)


def connect_unchecked(transport: Transport, hosts: tuple[Host, ...], access: Access) -> Cluster:
    """Start an agent on every host, where there is nothing to ask."""
    return Cluster(transport, transport.open(hosts, access).channels)


def connect(
    transport: Transport, hosts: tuple[Host, ...], access: Access, needed: Requirements
) -> tuple[Cluster, Checked]:
    """Start an agent on every host and check them all; the cluster is for whoever finds nothing amiss."""
    opened = transport.open(hosts, access)
    cluster = Cluster(transport, opened.channels)
    try:
        if opened.problems:
            raise HostsNotReady(list(opened.problems))
        checked = check_hosts(opened.channels, opened.hosts, needed, transport.device_variables, transport.tell)
    except BaseException:
        cluster.close()
        raise
    return checked_cluster(cluster, checked), checked


def checked_cluster(cluster: Cluster, checked: Checked) -> Cluster:
    """Add what the hosts have told about their folders and clocks."""
    remote = frozenset(name for name, report in checked.reports.items() if not report.shared)
    skew = {name: report.skew for name, report in checked.reports.items()}
    clock_errors = {name: report.clock_error for name, report in checked.reports.items()}
    return Cluster(cluster.transport, cluster.channels, remote, skew, clock_errors)
