"""Fetching a run's logs after its end, from hosts that were lost and can be reached again."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mslaunch.errors import RequestError
from mslaunch.launcher.attempt.event_check import Rejected, receive_checked
from mslaunch.launcher.attempt.file_transfer import FILE_EVENTS, FileTransfer
from mslaunch.launcher.check import Requirements, check_hosts
from mslaunch.launcher.connect import Cluster
from mslaunch.plan.model import Plan, from_json
from mslaunch.run.ownership import check_owner
from mslaunch.run.run import Run
from mslaunch.transports import registry
from mslaunch.transports.base import Access, Channel, Transport
from mslaunch.transports.streams import close_all, pings

SILENCE = 30.0


def collect_again(run: Run) -> tuple[list[str], list[str], list[str]]:
    """Fetch what can be had; return the files, why hosts could not be reached, and what stays on the hosts."""
    check_owner(run.folder, "collect")
    plan = run.plan
    transport = registry.make(plan.transport)
    if not transport.needs_check:
        raise RequestError(f"{run.run_id} ran on this machine: its logs are in {run.path} already.")
    if not run.has_ended:
        raise RequestError(f"{run.run_id} is still running; its logs are collected when it ends.")
    opened = transport.open(plan.hosts, Access(plan.hosts[0].python or sys.executable))
    channels, problems = opened.channels, list(opened.problems)
    if not channels:
        return [], problems, []
    try:
        with pings(channels):
            collecting = _Collecting(run, plan, transport, channels)
            collecting.receive_all()
    except BaseException:
        for channel in channels:
            channel.is_open = False  # whoever interrupts this does not want to wait for the hosts
        raise
    finally:
        close_all(channels)
    return sorted(collecting.fetched), problems + collecting.problems, collecting.transfer.notes()


class _Collecting:
    """The logs of an ended run on their way here, from the hosts that could be reached."""

    def __init__(self, run: Run, plan: Plan, transport: Transport, channels: Sequence[Channel]) -> None:
        reached = {host for channel in channels for host in channel.hosts}
        hosts = [host for host in plan.hosts if host.name in reached]
        checked = check_hosts(
            channels, hosts, Requirements(plan.run_dir, str(Path(plan.job_dir) / plan.workdir / plan.script))
        )
        cluster = Cluster(transport, channels).checked(checked)
        self.transfer = FileTransfer(cluster, run.folder, plan.run_dir)
        self.fetched: set[str] = set()
        self.problems: list[str] = []
        self._channels = {channel.fileno(): channel for channel in channels}
        for attempt in range(plan.attempt):
            path = run.folder.earlier_plan(attempt)
            if path.exists():
                self.transfer.claims.add(from_json(path.read_text(), str(path)))
        self.transfer.claims.add(plan)
        self.transfer.request(reached, tidy=True)

    def receive_all(self) -> None:
        """Receive until all hosts have sent what they have, or nothing has come for a while."""
        poll = select.poll()
        for end in self._channels:
            poll.register(end, select.POLLIN)
        heard = time.monotonic()
        while self.transfer.waiting and time.monotonic() - heard < SILENCE:
            for end, _ in poll.poll(500):
                heard = time.monotonic()
                if not self._receive_from(self._channels[end]):
                    poll.unregister(end)
                    self.transfer.waiting -= set(self._channels[end].hosts)
        self.problems += [f"{host}: silent for {SILENCE:.0f} s. Try again." for host in sorted(self.transfer.waiting)]

    def _receive_from(self, channel: Channel) -> bool:
        """Handle what has come from a channel; return False where nothing more is to be taken from it."""
        try:
            events = receive_checked(channel)
            for event in events or ():
                if event["ev"] in FILE_EVENTS:
                    self.transfer.receive(event, channel)
                if event["ev"] == "file":
                    self.fetched.add(event["path"])
        except Rejected as rejected:
            self.problems.append(f"{channel.hosts[0]}: it {rejected}, so nothing more is taken from it.")
            return False
        if events is None:
            self.problems += [f"{host}: the connection ended. Try again." for host in channel.hosts]
        return events is not None
