"""Hosts that are named and reached over SSH: one OpenSSH client process a host, nothing installed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mslaunch.errors import HostsNotReady, MslaunchError
from mslaunch.hosts import Host
from mslaunch.open_files import raise_limit
from mslaunch.transports.base import Access, Opened, RunCommand, T, Transport
from mslaunch.transports.local import is_this_machine
from mslaunch.transports.streams import close_all

SHELL_SECONDS = 60.0
"""What a host may take until it runs a command that needs no agent."""


class SshTransport(Transport):
    """What `ssh` reaches without a password, with everything that ~/.ssh/config says."""

    name = "ssh"
    label = "SSH"

    def is_default(self, named: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
        del environment
        return bool(named) and not is_this_machine(named)

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        from mslaunch.transports.code_bundle import agent_stream
        from mslaunch.transports.ssh.channel import AgentChannel
        from mslaunch.transports.ssh.command import Ssh
        from mslaunch.transports.ssh.connections import connect_all

        raise_limit(len(hosts))
        with Ssh(access.accept_new_keys) as ssh:
            program = agent_stream()
            results = connect_all(
                hosts,
                lambda host: AgentChannel(ssh, host, host.python or access.python, program),
                access.connect_timeout,
                self.tell,
            )
            opened = [
                (replace(host, address=got.address()), got)
                for host, got in zip(hosts, results, strict=True)
                if not isinstance(got, str)
            ]
        return Opened(
            [channel for _, channel in opened], tuple(host for host, _ in opened), tuple(_problems(hosts, results))
        )

    def run_commands(
        self, hosts: Sequence[Host], work: Callable[[Host, RunCommand], T], accept_new_keys: bool = False
    ) -> list[T]:
        from mslaunch.transports.ssh.command import Ssh
        from mslaunch.transports.ssh.connections import AT_ONCE, RemoteShell, connect_all

        raise_limit(len(hosts))
        with Ssh(accept_new_keys) as ssh:
            shells = connect_all(hosts, lambda host: RemoteShell(ssh, host), SHELL_SECONDS, self.tell)
        opened = [shell for shell in shells if not isinstance(shell, str)]

        def one(host: Host, shell: RemoteShell) -> T | str:
            try:
                return work(host, shell.run)
            except MslaunchError:
                raise
            except OSError as error:
                return f"{error}. {shell.hint}"

        try:
            if problems := _problems(hosts, shells):
                raise HostsNotReady(problems)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                done = list(pool.map(one, hosts, opened))
            if problems := _problems(hosts, done):
                raise HostsNotReady(problems)
            return [got for got in done if not isinstance(got, str)]
        finally:
            close_all(opened)


def _problems(hosts: Sequence[Host], results: Sequence[object]) -> list[str]:
    return [f"{host.name}: {got}" for host, got in zip(hosts, results, strict=True) if isinstance(got, str)]
