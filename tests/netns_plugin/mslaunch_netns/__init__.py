"""Hosts that are network namespaces of this machine: mslaunch train --transport netns --hosts NAME:1,NAME:1."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

from mslaunch.errors import NotReadyError
from mslaunch.hosts import Host
from mslaunch.plan.methods.built_in import Dynamic
from mslaunch.plan.methods.method import MethodPlan, PlacedJob
from mslaunch.transports.base import Access, Channel, Opened, Transport, open_each
from mslaunch.transports.process import ProcessChannel, agent_command

PATTERNS = Path(__file__).with_name("patterns.yaml")
LINES = Path(__file__).with_name("lines.yaml")


class NetnsTransport(Transport):
    """Agents that `ip netns exec` starts; they share this machine's files and this shell's variables."""

    name = "netns"
    label = "network namespaces"
    can_be_cut_off = False
    ends_with_launcher = True
    shares_environment = True

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        return open_each(hosts, partial(_open, access))


def _open(access: Access, host: Host) -> tuple[Host, Channel]:
    host = replace(host, address=_address(host.name))
    agent = agent_command(host.python or access.python, host.name)
    hint = f"Try `ip netns exec {host.name} true`."
    return host, ProcessChannel.start(host.name, ["ip", "netns", "exec", host.name, *agent], hint=hint)


def _address(name: str) -> str:
    """Return the address at which other namespaces reach this one."""
    asked = subprocess.run(["ip", "-n", name, "-json", "address"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise NotReadyError(f"{asked.stderr.strip()}. `ip netns list` shows which namespaces there are.")
    for link in json.loads(asked.stdout):
        for found in link["addr_info"]:
            if found["scope"] == "global":
                return str(found["local"])
    raise NotReadyError(f"it has no address. Give it one with `ip -n {name} address add`.")


class Nice(Dynamic):
    """The method dynamic, with ranks that leave the processor to others."""

    name = "nice"

    def plan(self, job: PlacedJob) -> MethodPlan:
        plan = super().plan(job)
        processes = (
            replace(process, argv=("nice", "-n", "10", *process.argv)) if process.role == "worker" else process
            for process in plan.processes
        )
        return replace(plan, processes=tuple(processes))
