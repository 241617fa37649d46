"""Hosts that are named and reached over SSH: one OpenSSH client process a host, nothing installed there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mslaunch.open_files import raise_limit
from mslaunch.transports.base import Access, Opened, Transport
from mslaunch.transports.code_bundle import agent_stream
from mslaunch.transports.ssh.channel import AgentChannel, Ssh
from mslaunch.transports.ssh.connections import Connecting, problems_of

if TYPE_CHECKING:
    from mslaunch.hosts import Host


class SshTransport(Transport):
    """What `ssh` reaches without a password, with everything that ~/.ssh/config says."""

    name = "ssh"
    label = "SSH"

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        raise_limit(len(hosts))
        with Ssh(access.accept_new_keys) as ssh:
            program = agent_stream()
            results = Connecting(
                hosts,
                lambda host: AgentChannel(ssh, host, host.python or access.python, program),
                access.connect_timeout,
                self.tell,
            ).run()
            channels = []
            reached = []
            for host, channel in zip(hosts, results, strict=True):
                if not isinstance(channel, str):
                    channels.append(channel)
                    reached.append(replace(host, address=channel.address()))
        return Opened(channels, tuple(reached), tuple(problems_of(hosts, results)))
