"""One attempt: passes the agents' events to the run state, and its orders to the agents."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from mslaunch.launcher.attempt.claims import ProcessClaims
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.launcher.attempt.event_check import EARLIEST, Rejected, check_event
from mslaunch.launcher.attempt.file_transfer import FileTransfer
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.attempt.timeouts import Timeouts
from mslaunch.launcher.check import find_port
from mslaunch.launcher.connect import Cluster
from mslaunch.launcher.facts import choose_port
from mslaunch.metrics.order import metrics_order
from mslaunch.metrics.rows import Row
from mslaunch.plan.model import Plan, process_to_dict
from mslaunch.run.paths import RunFolder
from mslaunch.shared import messages
from mslaunch.shared.running_clock import RunningClock
from mslaunch.shared.visible_devices import DEVICE_FILES
from mslaunch.signals import ASKING, SUSPEND, SignalSource
from mslaunch.transports.base import Channel, Transport

TICK = 0.5
LOOK_EVERY = 1.0  # at agents of this machine, whether somebody has stopped them
STOP_SECONDS = 30.0  # beyond the grace: what an agent takes at most to end its ranks, or to tell that it cannot
SAVE_SHARE = 20  # saving the record of 10,000 ranks may take at most a twentieth of the time

Notice = Mapping[str, Any]
"""An event of an agent, or one of the attempt itself: tick, signal, note, closed, restart, waiting."""
Observer = Callable[[Notice, RunState, Callable[[], None]], None]
"""Is shown every notice, with how the attempt stands and what to call once it is on the screen."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Both clocks: one that only runs forward, for limits, and the wall's, for the record."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


REAL_CLOCK = Clock()


def nothing() -> None:
    """Call nobody back."""


class Attempt:
    """One plan, carried out by the agents behind the channels."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        transfer: FileTransfer,
        signals: SignalSource,
        observe: Observer,
        write: Callable[[Notice], None],
        job_began: float,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.plan = plan
        self.cluster = cluster
        self.transfer = transfer
        self.channels = {channel.fileno(): channel for channel in cluster.channels if channel.is_open}
        self.clock = clock
        self.running_clock = RunningClock(clock.monotonic)
        self.last_heard: dict[str, float] = {}
        self.signals = signals
        self.show = observe
        self.write = write
        self.keep: Callable[[list[Row]], None] = lambda _: None
        """Keeps rows of metrics."""
        self.on_change: Callable[[RunState], None] = lambda _: None
        self.run_state = RunState(plan, clock.monotonic(), cluster.transport.stops_agents, cluster.clock_errors)
        self.timeouts = Timeouts(self.run_state, job_began)
        self._claims = ProcessClaims(plan)
        self.collection_ended_by: int | None = None
        """The signal that ended the collection of logs, if one did."""
        self._is_collecting = False
        self._changed = False
        self._save_at = 0.0
        self._checked = 0.0
        self._looked_at_agents = 0.0
        self._stopped_since: dict[str, float] = {}
        self._noted: set[str] = set()
        self._stop_limit: float | None = None
        """After how many silent seconds an agent that has been told to stop is lost, also where none can be cut off."""
        self._poll = select.epoll()
        self._poll.register(signals.fileno(), select.EPOLLIN)

    def run(self, environment: Mapping[str, str]) -> RunState:
        """Start everything and follow it until nothing is left."""
        self.start(environment)
        while not self.run_state.over:
            self.turn()
        self.collect_logs(tidy=False)
        return self.run_state

    def start(self, environment: Mapping[str, str]) -> None:
        """Send every host its files and its part of the plan."""
        self.transfer.send(self.plan)
        wanted = {host.name for host in self.plan.hosts}
        self.channels = {end: one for end, one in self.channels.items() if not wanted.isdisjoint(one.hosts)}
        for end in self.channels:
            self._poll.register(end, select.EPOLLIN)
        orders = dict(start_orders(self.plan, environment, self.cluster.transport))
        for channel in self.channels.values():
            for host in channel.hosts:
                if host in orders:
                    channel.send(orders.pop(host))
                    self.last_heard[host] = self.running_clock.now

    def turn(self) -> None:
        """Wait a moment for something to happen, and do what has to be done about it and about the time."""
        self.receive()
        self.check_silence()
        self.check_stopped_agents()
        now = self.clock.monotonic()
        self.transfer.request_meanwhile(now)
        if self._changed and now >= self._save_at:
            self._changed = False
            self.on_change(self.run_state)
            took = self.clock.monotonic() - now
            self._save_at = now + max(TICK, SAVE_SHARE * took)
        wall = self.clock.wall()
        self.run_state.notes += self.cluster.transport.pop_notes()
        self.send_orders(self.timeouts.check(now, wall))
        self.tick()

    def receive(self) -> None:
        """Wait a moment for signals and for what the agents send."""
        for end, _ in self._poll.poll(TICK):
            if end == self.signals.fileno():
                self.handle_signals()
            elif end in self.channels and not self.receive_from(self.channels[end]):
                self._forget(end)

    def _forget(self, end: int) -> None:
        del self.channels[end]
        self._poll.unregister(end)

    def check_silence(self) -> None:
        """Notice hosts that have fallen silent: dead, or cut off."""
        now = self.running_clock.advance()
        limit = self.plan.limits.host_lost_after if self.cluster.transport.can_be_cut_off else self._stop_limit
        if limit is None or now - self._checked < TICK:
            return
        self._checked = now
        silent = {host for host, when in self.last_heard.items() if now - when > limit}
        if silent and (why := self.cluster.transport.why_silent(silent)):
            self.last_heard |= dict.fromkeys(silent, now)
            self._note_once(f"{why}; the job waits until it goes on")
        else:
            self._lose({host: f"nothing heard from {host} for {limit:g} s" for host in silent})

    def check_stopped_agents(self) -> None:
        """Report an agent on this machine that a signal has stopped, and count it as lost after a while.

        One that is to end is continued: it ends its ranks in order.
        """
        now, limit = self.running_clock.now, self.plan.limits.host_lost_after
        if now - self._looked_at_agents < LOOK_EVERY:
            return
        self._looked_at_agents = now
        stopped = self.cluster.transport.stopped_agents()
        self._stopped_since = {host: self._stopped_since.get(host, now) for host in stopped}
        for host, pid in stopped.items():
            if self.run_state.ending.stopping:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            elif now > self._stopped_since[host]:
                advice = f"`kill -CONT {pid}` continues it; after {limit:g} s the job ends (launch.host_lost_after)"
                self._note_once(f"the agent on {host}, process {pid}, was stopped by a signal: {advice}")
        late = [host for host, since in self._stopped_since.items() if now - since > limit]
        self._lose({host: f"the agent on {host} was stopped by a signal for {limit:g} s" for host in late})

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self.run_state.notes.append(text)

    def _lose(self, hosts: Mapping[str, str]) -> None:
        """Count hosts as lost, each for its reason, and close the channels that lead to no other."""
        for host, why in hosts.items():
            self.last_heard.pop(host, None)
            self.send_orders(self.run_state.host_lost((host,), self.clock.wall(), why))
        for end, channel in list(self.channels.items()) if hosts else ():
            if hosts.keys() >= set(channel.hosts):
                self._forget(end)
                channel.is_open = False
                channel.close()

    def free_port(self, host: str) -> int:
        """Find a port for the scheduler of a further attempt, on the host that it will run on."""
        if not self.cluster.transport.needs_check:
            return choose_port(None)
        return find_port(list(self.channels.values()), host)

    def collect_logs(self, tidy: bool) -> None:
        """Collect the logs of hosts that do not write them here; a host that falls silent meanwhile is left.

        Nothing of the job is left, so a signal ends the collection and nothing else.
        """
        if self.collection_ended_by is None:
            self.transfer.request(self._connected_hosts(), tidy)
            for host in self.transfer.waiting:
                self.last_heard[host] = self.running_clock.now
            self._is_collecting = True
            notify_at = self.clock.monotonic()
            while self.collection_ended_by is None and self.transfer.waiting & self._connected_hosts():
                self.receive()
                self.check_silence()
                if (now := self.clock.monotonic()) >= notify_at:  # a program looks for requests to stop then
                    notify_at = now + TICK
                    self.tick()
            self._is_collecting = False
            self._leave_collecting()
        if tidy:
            self.run_state.notes += self.transfer.notes()

    def _connected_hosts(self) -> set[str]:
        return {host for channel in self.channels.values() for host in channel.hosts}

    def _leave_collecting(self) -> None:
        """Where a signal has ended the collection, say what that means, and wait for none of the hosts any more."""
        if self.collection_ended_by is None or not self.transfer.waiting:
            return
        from mslaunch.run.search import arguments_for

        hosts = ", ".join(sorted(self.transfer.waiting))
        run = arguments_for(RunFolder(Path(self.plan.run_dir)), os.environ)
        fetch = f"`mslaunch collect {run}` fetches them"
        self.run_state.notes.append(f"collecting logs was ended by a signal: some stay on {hosts}; {fetch}")
        for channel in self.channels.values():
            if self.transfer.waiting.issuperset(channel.hosts):
                channel.is_open = False

    def handle_signals(self) -> None:
        for number in self.signals.read():
            if number == SUSPEND:
                self.suspend()
                continue
            event = {"ev": "signal", "signal": number, "time": self.clock.wall()}
            self.write(event)
            if self._is_collecting and number not in ASKING:
                self.collection_ended_by = number
            else:
                self.send_orders(self.run_state.signalled(number))
            self.notify(event)

    def suspend(self) -> None:
        """Ctrl-Z: tell the agents that the silence will be wanted, and stop until somebody continues this process."""
        for order in ("pause", "resume"):
            for channel in self.channels.values():
                channel.send({"to": "*", "do": order})
            if order == "pause":
                for channel in self.channels.values():
                    channel.flush()
                os.kill(os.getpid(), signal.SIGSTOP)

    def receive_from(self, channel: Channel) -> bool:
        """Handle what has come from a channel; return False when its stream has ended."""
        received = channel.receive()
        if received is None:
            for host in channel.hosts:
                self.last_heard.pop(host, None)
            wall = self.clock.wall()
            self.send_orders(self.run_state.host_lost(channel.hosts, wall))
            self.notify({"ev": "closed", "host": channel.hosts[0], "time": wall})
            return False
        now, heard = self.clock.monotonic(), self.running_clock.advance()
        try:
            for event in received:
                check_event(event, channel.hosts)
                self.last_heard[event["host"]] = heard
                if not self.transfer.receive(event, channel):
                    self._handle(event, channel, now)
        except Rejected as rejected:
            self._reject(channel, str(rejected))
        return True

    def _reject(self, channel: Channel, what: str) -> None:
        """A host that sends what it must not send is counted as lost, and cut off."""
        self._forget(channel.fileno())
        channel.is_open = False
        channel.close()
        names = ", ".join(channel.hosts)
        for host in channel.hosts:
            self.last_heard.pop(host, None)
        why = f"{names} {what}"
        self.write({"ev": "rejected", "host": names, "why": what, "time": self.clock.wall()})
        if self.run_state.hosts.busy.isdisjoint(channel.hosts):
            self.run_state.notes.append(f"{why}; nothing more is taken from it")
        self.send_orders(self.run_state.host_lost(channel.hosts, self.clock.wall(), why))

    def _handle(self, event: messages.Message, channel: Channel, now: float) -> None:
        name = event["ev"]
        if name not in messages.AGENT_EVENTS:
            self.write({"ev": "unknown", "host": event["host"], "name": name})
            return
        self._claims.check(event)
        skew = self.cluster.skew.get(event["host"], 0.0)
        for timed in (event, *event.get("rows", ())):
            timed["time"] = max(EARLIEST, timed["time"] - skew)
        if name not in messages.NOT_RECORDED:
            self._changed = True
            self.write(event)
        self.send_orders(self.run_state.dispatch(event, now))
        if rows := self.run_state.numbers.pop_rows():
            self.keep(rows)
        if name == "stacks" and self.run_state.stacks.groups is not None:
            self.write({"ev": "stacks-taken", "groups": [group.words() for group in self.run_state.stacks.groups]})
        shown = nothing
        if name == "lines":
            # Once they are on the screen, the agent may send more: the log itself is the buffer.
            shown = partial(channel.send, {"to": event["host"], "do": "shown", "bytes": event["bytes"]})
        self.notify(event, shown)

    def send_orders(self, orders: list[Order]) -> None:
        for order in orders:
            message = order.message()
            if order.do == "stop":
                self._expect_end(order.grace)
                self.write({"ev": "stopping", "time": self.clock.wall()})
            for channel in self.channels.values():
                channel.send(message)

    def _expect_end(self, grace: float) -> None:
        """From now on agents that cannot be cut off must be heard of as well: one that is stopped would never end."""
        self._stop_limit = grace + STOP_SECONDS
        if not self.cluster.transport.can_be_cut_off:
            self.last_heard = dict.fromkeys(self.last_heard, self.running_clock.now)

    def tick(self) -> None:
        """Let the observer look at the time, and at how the attempt stands."""
        self.notify({"ev": "tick", "time": self.clock.wall()})

    def notify(self, notice: Notice, shown: Callable[[], None] = nothing) -> None:
        """Show the notes that wait, then a notice."""
        self.flush_notes()
        self._show(notice, shown)

    def flush_notes(self) -> None:
        """Record and show what a person should know."""
        for text in self.run_state.pop_notes():
            note = {"ev": "note", "text": text, "time": self.clock.wall()}
            self.write(note)
            self._changed = True  # run.json holds the last ones
            self._show(note)

    def _show(self, notice: Notice, shown: Callable[[], None] = nothing) -> None:
        """Show a notice. If that fails, the job goes on."""
        try:
            self.show(notice, self.run_state, shown)
        except Exception:
            self.show = lambda _notice, _run_state, shown: shown()
            self.write({"ev": "console-lost", "traceback": traceback.format_exc()})

    def close(self) -> None:
        self._poll.close()


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
        "metrics": metrics_order(plan.metrics, plan.world_size, plan.device_target),
    }
    tail = set(plan.tail)
    for host in plan.hosts:
        shown = sorted(rank for rank in ranks.get(host.name, ()) if rank in tail and rank is not None)
        own = {"sync": _sync_order(plan, host.name), "tail": shown, "processes": processes[host.name]}
        order = {"to": host.name, **common, **own}
        yield host.name, cast(messages.RunOrder, order)


def _sync_order(plan: Plan, host: str) -> messages.SyncOrder | None:
    if plan.sync is None:
        return None
    before, after = (
        [messages.CopyOrder(source=one.source, target=one.target) for one in some]
        for some in (plan.sync.before, plan.sync.after)
    )
    python = plan.sync.pythons[host]
    return messages.SyncOrder(python=python, before=before, after=after, endpoint=plan.sync.endpoint)
