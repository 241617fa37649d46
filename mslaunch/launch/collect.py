"""Fetching a run's logs after its end, from hosts that were lost and can be reached again."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from mslaunch.launch.check import Wanted, check_hosts
from mslaunch.launch.cluster import Cluster
from mslaunch.launch.luggage import Luggage
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.transport import Pings
from mslaunch.plan.model import Plan

SILENCE = 30.0


def collect_again(plan: Plan, folder: RunFolder) -> tuple[list[str], list[str], list[str]]:
    """Fetch what can be had; return the files, why hosts could not be reached, and what stays on the hosts."""
    from mslaunch.launch.ssh import try_hosts

    channels, troubles = try_hosts(plan.hosts, plan.hosts[0].python or sys.executable)
    if not channels:
        return [], troubles, []
    reached = {host for channel in channels for host in channel.hosts}
    hosts = [host for host in plan.hosts if host.name in reached]
    checked = check_hosts(channels, hosts, Wanted(plan.run_dir, str(Path(plan.job_dir) / plan.script)))
    remote = frozenset(name for name, report in checked.reports.items() if not report.shared)
    luggage = Luggage(Cluster(channels, remote), folder, plan.run_dir)
    luggage.ask(reached, tidy=True)
    ends = {channel.fileno(): channel for channel in channels}
    fetched: set[str] = set()
    heard = time.monotonic()
    with Pings(channels):
        while luggage.waiting and time.monotonic() - heard < SILENCE:
            for end, _ in _poll(list(ends)):
                messages = ends[end].receive()
                if messages is None:
                    luggage.waiting -= set(ends.pop(end).hosts)
                    continue
                heard = time.monotonic()
                for event in messages:
                    luggage.take(event, ends[end])
                    if event["ev"] == "file":
                        fetched.add(event["path"])
    for channel in channels:
        channel.close()
    return sorted(fetched), troubles, luggage.notes()


def _poll(ends: list[int]) -> list[tuple[int, int]]:
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    return poll.poll(500)
