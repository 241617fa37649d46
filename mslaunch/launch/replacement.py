"""Hosts in place of those that an attempt has lost: waited for, checked, and planned with."""

from __future__ import annotations

import select
from dataclasses import dataclass

from mslaunch.errors import MslaunchError
from mslaunch.launch.attempt.attempt import Attempt
from mslaunch.launch.connect import Cluster, Site
from mslaunch.plan.model import Plan
from mslaunch.signals import ASKING, SUSPEND
from mslaunch.transports.streams import close_all


class Interrupted(Exception):
    """A signal has asked for the end while hosts were waited for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Replaced:
    """The next attempt, and the hosts that it runs on."""

    plan: Plan
    cluster: Cluster


def replace_hosts(site: Site, attempt: Attempt, lost: set[str]) -> Replaced | str:
    """Wait for hosts in place of those that were lost; say why the job cannot go on where that fails."""
    plan, cluster = attempt.plan, attempt.cluster
    left = tuple(host for host in plan.hosts if host.name not in lost)
    gone = tuple(host for host in plan.hosts if host.name in lost)
    attempt.run_state.notes.append(f"waiting for a host in place of {', '.join(sorted(lost))}")
    attempt.flush_notes()
    try:
        channels, hosts = cluster.transport.replace_hosts(left, gone, lambda seconds: _wait(attempt, seconds))
    except MslaunchError as error:
        return str(error)
    names = {host.name for host in left}
    kept = [one for one in cluster.channels if one.is_open and names.issuperset(one.hosts)]
    together = [*kept, *channels]
    try:
        again, checked = site.rejoin(together, hosts, plan.attempt + 1)
    except MslaunchError as error:
        close_all(channels)
        return str(error)
    return Replaced(again, Cluster(cluster.transport, together).checked(checked))


def _wait(attempt: Attempt, seconds: float) -> None:
    """Wait a moment, or raise where a signal asks for the end."""
    poll = select.poll()
    poll.register(attempt.signals.fileno(), select.POLLIN)
    poll.poll(seconds * 1000)
    for number in attempt.signals.read():
        if number == SUSPEND:
            attempt.suspend()
        elif number not in ASKING:
            raise Interrupted(number)
