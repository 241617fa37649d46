"""One attempt: passes the agents' events to the run state, and its orders to the agents."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from mslaunch.launcher.attempt import notices
from mslaunch.launcher.attempt.claims import ProcessClaims
from mslaunch.launcher.attempt.connections import TICK, Arrival, Connections, Loss
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.event_check import EARLIEST, Rejected
from mslaunch.launcher.attempt.file_transfer import FILE_EVENTS, FileTransfer
from mslaunch.launcher.attempt.journal import Journal, nothing
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.attempt.timeouts import Timeouts
from mslaunch.metrics.order import metrics_order
from mslaunch.plan.model import Plan, Sync, process_to_dict
from mslaunch.run.paths import RunFolder
from mslaunch.shared import messages
from mslaunch.shared.visible_devices import DEVICE_FILES
from mslaunch.signals import ASKING
from mslaunch.transports.base import Transport


class Attempt:
    """One plan, carried out by the agents behind the connections."""

    def __init__(
        self, plan: Plan, connections: Connections, transfer: FileTransfer, journal: Journal, job_began: float
    ) -> None:
        self.plan = plan
        self.connections = connections
        self.transfer = transfer
        self.journal = journal
        self.clock = connections.clock
        cluster = connections.cluster
        began = self.clock.monotonic()
        self.run_state = RunState(plan, began, cluster.transport.stops_agents, cluster.clock_errors)
        self.timeouts = Timeouts(self.run_state, job_began)
        self._claims = ProcessClaims(plan)
        self.collection_ended_by: int | None = None
        """The signal that ended the collection of logs, if one did."""
        self._is_collecting = False

    def run(self, environment: Mapping[str, str]) -> RunState:
        """Start everything and follow it until nothing is left."""
        self.start(environment)
        while self.run_state.hosts.busy:
            self.turn()
        self.collect_logs(tidy=False)
        return self.run_state

    def start(self, environment: Mapping[str, str]) -> None:
        """Send every host its files and its part of the plan."""
        self.transfer.send(self.plan)
        self.connections.watch(self.run_state.hosts.names)
        self.connections.send_each(dict(start_orders(self.plan, environment, self.connections.cluster.transport)))

    def turn(self) -> None:
        """Wait a moment for something to happen, and do what has to be done about it and about the time."""
        self.receive()
        for loss in self.connections.find_stopped():
            self._lose(loss)
        now = self.clock.monotonic()
        self.transfer.request_meanwhile(now)
        self.journal.save_changes()
        self.run_state.notes += self.connections.pop_notes()
        self.send_orders(self.timeouts.check(now, self.clock.wall()))
        self.tick()

    def receive(self) -> None:
        """Wait a moment for signals and for what the agents send; hosts that stay silent for too long are lost."""
        for arrival in self.connections.receive():
            if isinstance(arrival, Loss):
                self._lose(arrival)
                continue
            try:
                self._take(arrival)
            except Rejected as rejected:
                self._lose(self.connections.reject(arrival.channel, rejected))
        for number in self.connections.read_signals():
            self._obey(number)
        for loss in self.connections.find_silent():
            self._lose(loss)

    def _obey(self, number: int) -> None:
        """Do what a signal asks for; nothing of the job is left when logs are collected, so it ends only that."""
        notice = notices.SignalNotice(number, self.clock.wall())
        self.journal.write_notice(notice)
        if self._is_collecting and number not in ASKING:
            self.collection_ended_by = number
        else:
            self.send_orders(self.run_state.signalled(number))
        self.journal.notify(notice, self.run_state)

    def _lose(self, loss: Loss) -> None:
        wall = self.clock.wall()
        if loss.rejected:
            self.journal.write_notice(notices.RejectedEvent(", ".join(loss.hosts), loss.rejected, wall))
            if self.run_state.hosts.busy.isdisjoint(loss.hosts):
                self.run_state.notes.append(f"{loss.why}; nothing more is taken from it")
        self.send_orders(self.run_state.host_lost(loss.hosts, wall, loss.why))
        if not loss.why:
            self.journal.notify(notices.Closed(loss.hosts[0], wall), self.run_state)

    def _take(self, arrival: Arrival) -> None:
        """Handle an event of an agent."""
        event, channel, name = arrival.event, arrival.channel, arrival.event["ev"]
        if name in FILE_EVENTS:
            self.transfer.receive(event, channel)
            return
        if name not in messages.AGENT_EVENTS:
            self.journal.write_notice(notices.UnknownEvent(event["host"], name))
            return
        self._claims.check(event)
        skew = self.connections.cluster.skew.get(event["host"], 0.0)
        for timed in (event, *event.get("rows", ())):
            timed["time"] = max(EARLIEST, timed["time"] - skew)
        if name not in messages.NOT_RECORDED:
            self.journal.write(event)
        self.send_orders(self.run_state.dispatch(event, self.clock.monotonic()))
        if name == "metrics":
            self.journal.keep(self.run_state.numbers.pop_rows())
        if name == "stacks" and self.run_state.stacks.groups is not None:
            groups = [group.words() for group in self.run_state.stacks.groups]
            self.journal.write_notice(notices.StacksTaken(groups))
        shown = nothing
        if name == "lines":
            # Once they are on the screen, the agent may send more: the log itself is the buffer.
            shown = partial(channel.send, {"to": event["host"], "do": "shown", "bytes": event["bytes"]})
        self.journal.notify(event, self.run_state, shown)

    def send_orders(self, orders: list[Order]) -> None:
        for order in orders:
            if order.do == "stop":
                self.connections.expect_end(order.grace)
                self.journal.write_notice(notices.Stopping(self.clock.wall()))
            self.connections.send({"to": "*", "do": order.do, "grace": order.grace})

    def collect_logs(self, tidy: bool) -> None:
        """Collect the logs of hosts that do not write them here; a host that falls silent meanwhile is left."""
        if not self.connections.cluster.remote:
            return
        if self.collection_ended_by is None:
            self.transfer.request(self.connections.hosts(), tidy)
            self.connections.expect(self.transfer.waiting)
            self._is_collecting = True
            notify_at = self.clock.monotonic()
            while self.collection_ended_by is None and self.transfer.waiting & self.connections.hosts():
                self.receive()
                if (now := self.clock.monotonic()) >= notify_at:  # a program looks for requests to stop then
                    notify_at = now + TICK
                    self.tick()
            self._is_collecting = False
            self._leave_collecting()
        if tidy:
            self.run_state.notes += self.transfer.notes()

    def _leave_collecting(self) -> None:
        """Where a signal has ended the collection, say what that means, and wait for none of the hosts any more."""
        if self.collection_ended_by is None or not self.transfer.waiting:
            return
        from mslaunch.run.find import arguments_for

        hosts = ", ".join(sorted(self.transfer.waiting))
        run = arguments_for(RunFolder(Path(self.plan.run_dir)), os.environ)
        fetch = f"`mslaunch collect {run}` fetches them"
        self.run_state.notes.append(f"collecting logs was ended by a signal: some stay on {hosts}; {fetch}")
        self.connections.give_up(self.transfer.waiting)

    def tick(self) -> None:
        """Let the observer look at the time, and at how the attempt stands."""
        self.journal.notify(notices.Tick(self.clock.wall()), self.run_state)


def start_orders(
    plan: Plan, environment: Mapping[str, str], transport: Transport
) -> Iterator[tuple[str, messages.RunOrder]]:
    """What each host's agent has to know to start its part."""
    processes: dict[str, list[messages.PlannedProcess]] = defaultdict(list)
    for process in plan.processes:
        processes[process.host].append(cast(messages.PlannedProcess, process_to_dict(process)))
    ranks = {host: {process["rank"] for process in some} for host, some in processes.items()}
    common: dict[str, Any] = {
        "do": "run",
        "run_dir": plan.run_dir,
        "attempt": plan.attempt,
        "env": {**{name: environment[name] for name in plan.carried}, **plan.env},
        "unset": plan.unset,
        "secrets": {name: environment[name] for name in plan.secrets},
        "setup": plan.setup,
        "stdin": plan.stdin,
        "launcher_lost_after": None if transport.ends_with_launcher else plan.limits.launcher_lost_after,
        "grace": plan.limits.grace,
        "answers": transport.can_be_cut_off or plan.limits.stall_timeout is not None,
        "device_files": None if plan.share_devices else DEVICE_FILES.get(plan.device_target),
        "reports_launchers": plan.world_size > 1 and not plan.allow_launcher,
        "workdir": plan.workdir,
        "sync": None,
        "metrics": metrics_order(plan.metrics, plan.world_size, plan.device_target),
    }
    tail = set(plan.tail)
    for host in plan.hosts:
        shown = sorted(rank for rank in ranks.get(host.name, ()) if rank in tail and rank is not None)
        order = {"to": host.name, **common, "tail": shown, "processes": processes[host.name]}
        if plan.sync is not None:
            order["sync"] = _sync_order(plan.sync, host.name)
        yield host.name, cast(messages.RunOrder, order)


def _sync_order(sync: Sync, host: str) -> messages.SyncOrder:
    before, after = (
        [messages.CopyOrder(source=copy.source, target=copy.target) for copy in copies]
        for copies in (sync.before, sync.after)
    )
    return messages.SyncOrder(python=sync.pythons[host], before=before, after=after, endpoint=sync.endpoint)
