"""Fetching a run's logs after its end, from hosts that were lost and can be reached again."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from mslaunch.errors import RequestError
from mslaunch.launcher.check import Requirements, check_hosts
from mslaunch.launcher.cluster import Cluster, checked_cluster
from mslaunch.launcher.file_transfer import FileTransfer
from mslaunch.store.ownership import check_owner
from mslaunch.store.run import Run
from mslaunch.transports import registry
from mslaunch.transports.base import Access, Pings, close_all

SILENCE = 30.0


def collect_again(run: Run) -> tuple[list[str], list[str], list[str]]:
    """Fetch what can be had; return the files, why hosts could not be reached, and what stays on the hosts."""
    check_owner(run.folder, "collect")
    plan, folder = run.plan, run.folder
    transport = registry.get(plan.transport)
    if not transport.needs_check:
        raise RequestError(f"{run.run_id} ran on this machine: its logs are in {run.path} already.")
    if not run.has_ended:
        raise RequestError(f"{run.run_id} is still running; its logs are collected when it ends.")
    opened = transport.open(plan.hosts, Access(plan.hosts[0].python or sys.executable))
    channels, problems = opened.channels, list(opened.problems)
    if not channels:
        return [], problems, []
    reached = {host for channel in channels for host in channel.hosts}
    hosts = [host for host in plan.hosts if host.name in reached]
    checked = check_hosts(channels, hosts, Requirements(plan.run_dir, str(Path(plan.job_dir) / plan.script)))
    transfer = FileTransfer(checked_cluster(Cluster(transport, channels), checked), folder, plan.run_dir)
    transfer.request(reached, tidy=True)
    ends = {channel.fileno(): channel for channel in channels}
    fetched: set[str] = set()
    heard = time.monotonic()
    with Pings(channels):
        while transfer.waiting and time.monotonic() - heard < SILENCE:
            for end, _ in _poll(list(ends)):
                messages = ends[end].receive()
                if messages is None:
                    transfer.waiting -= set(ends.pop(end).hosts)
                    continue
                heard = time.monotonic()
                for event in messages:
                    transfer.receive(event, ends[end])
                    if event["ev"] == "file":
                        fetched.add(event["path"])
    close_all(channels)
    return sorted(fetched), problems, transfer.notes()


def _poll(ends: list[int]) -> list[tuple[int, int]]:
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    return poll.poll(500)
