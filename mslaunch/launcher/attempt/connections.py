"""The streams to the agents of a run: what comes is checked, and hosts that are cut off, silent or lying are lost."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from mslaunch.launcher.attempt.event_check import Rejected, check_event
from mslaunch.launcher.attempt.journal import REAL_CLOCK, Clock
from mslaunch.launcher.connect import Cluster
from mslaunch.shared import messages
from mslaunch.shared.running_clock import RunningClock
from mslaunch.signals import ASKING, SUSPEND, SignalSource
from mslaunch.transports.base import Channel

TICK = 0.5
LOOK_EVERY = 1.0  # at agents of this machine, whether somebody has stopped them
STOP_SECONDS = 30.0  # beyond the grace: what an agent takes at most to end its ranks, or to tell that it cannot


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event of a host that the channel may speak for, with the fields of its type."""

    event: messages.Message
    channel: Channel


@dataclass(frozen=True, slots=True)
class Loss:
    """Nothing more comes from these hosts."""

    hosts: tuple[str, ...]
    why: str = ""
    """Empty where the stream has just ended."""
    rejected: str = ""
    """What they have sent and must not send."""


class Connections:
    """Reads from the agents and sends to them; signals wake it up."""

    def __init__(
        self, cluster: Cluster, signals: SignalSource, host_lost_after: float, clock: Clock = REAL_CLOCK
    ) -> None:
        self.cluster = cluster
        self.channels = list(cluster.channels)
        """One list for as long as the run lasts."""
        self.clock = clock
        self._signals = signals
        self._limit = host_lost_after
        self._running_clock = RunningClock(clock.monotonic)
        self._watched: dict[int, Channel] = {}
        self._last_heard: dict[str, float] = {}
        self._checked = 0.0
        self._looked_at_agents = 0.0
        self._stopped_since: dict[str, float] = {}
        self._stop_limit: float | None = None
        """After how many silent seconds an agent that has been told to stop is lost, also where none can be cut off."""
        self._notes: list[str] = []
        self._noted: set[str] = set()
        self._poll = select.epoll()

    def use(self, cluster: Cluster) -> None:
        """Go on with other hosts."""
        self.cluster = cluster
        self.channels[:] = cluster.channels

    def watch(self, hosts: Collection[str]) -> None:
        """Read from the channels that lead to these hosts, and from no others."""
        names = set(hosts)
        self._poll.close()
        self._poll = select.epoll()
        self._poll.register(self._signals.fileno(), select.EPOLLIN)
        self._watched = {}
        self._last_heard = {}
        for channel in self.channels:
            if channel.is_open and not names.isdisjoint(channel.hosts):
                self._watched[channel.fileno()] = channel
                self._poll.register(channel.fileno(), select.EPOLLIN)
                self._last_heard |= dict.fromkeys(names.intersection(channel.hosts), self._running_clock.now)
        self._stopped_since = {}
        self._stop_limit = None
        self._noted = set()

    def hosts(self) -> set[str]:
        """The hosts that are still connected."""
        return {host for channel in self._watched.values() for host in channel.hosts}

    def expect(self, hosts: Collection[str]) -> None:
        """Count the silence of these hosts from now on."""
        self._last_heard |= dict.fromkeys(hosts, self._running_clock.now)

    def expect_end(self, grace: float) -> None:
        """From now on agents that cannot be cut off must be heard of as well: one that is stopped would never end."""
        self._stop_limit = grace + STOP_SECONDS
        if not self.cluster.transport.can_be_cut_off:
            self.expect(self._last_heard)

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message to all agents."""
        for channel in self._watched.values():
            channel.send(message)

    def send_each(self, orders: Mapping[str, Mapping[str, object]]) -> None:
        """Send each host its own message."""
        for channel in self._watched.values():
            for host in channel.hosts:
                if host in orders:
                    channel.send(orders[host])

    def receive(self) -> Iterator[Arrival | Loss]:
        """Wait a moment for signals and for what the agents send; yield what has come."""
        for end, _ in self._poll.poll(TICK):
            channel = self._watched.get(end)
            if channel is None:
                continue
            received = channel.receive()
            if received is None:
                self._forget(channel)
                yield Loss(channel.hosts)
                continue
            heard = self._running_clock.advance()
            for event in received:
                if end not in self._watched:
                    break
                try:
                    check_event(event, channel.hosts)
                except Rejected as rejected:
                    yield self.reject(channel, rejected)
                    break
                self._last_heard[event["host"]] = heard
                yield Arrival(event, channel)

    def reject(self, channel: Channel, rejected: Rejected) -> Loss:
        """Cut off a host that sends what it must not send."""
        self._cut_off(channel)
        return Loss(channel.hosts, f"{', '.join(channel.hosts)} {rejected}", str(rejected))

    def _cut_off(self, channel: Channel) -> None:
        self._forget(channel)
        channel.is_open = False
        channel.close()

    def _forget(self, channel: Channel) -> None:
        del self._watched[channel.fileno()]
        self._poll.unregister(channel.fileno())
        for host in channel.hosts:
            self._last_heard.pop(host, None)

    def find_silent(self) -> list[Loss]:
        """Return the hosts that have fallen silent: dead, or cut off."""
        now, transport = self._running_clock.advance(), self.cluster.transport
        limit = self._limit if transport.can_be_cut_off else self._stop_limit
        if limit is None or now - self._checked < TICK:
            return []
        self._checked = now
        silent = {host for host, when in self._last_heard.items() if now - when > limit}
        if silent and (why := transport.why_silent(silent)):
            self.expect(silent)
            self._note_once(f"{why}; the job waits until it goes on")
            return []
        return self._lose({host: f"nothing heard from {host} for {limit:g} s" for host in silent})

    def find_stopped(self) -> list[Loss]:
        """Report an agent on this machine that a signal has stopped; return those that are counted as lost.

        One that is to end is continued: it ends its ranks in order.
        """
        now, limit = self._running_clock.now, self._limit
        if now - self._looked_at_agents < LOOK_EVERY:
            return []
        self._looked_at_agents = now
        stopped = self.cluster.transport.stopped_agents()
        self._stopped_since = {host: self._stopped_since.get(host, now) for host in stopped}
        for host, pid in stopped.items():
            if self._stop_limit is not None:
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
            elif now > self._stopped_since[host]:
                advice = f"`kill -CONT {pid}` continues it; after {limit:g} s the job ends (launch.host_lost_after)"
                self._note_once(f"the agent on {host}, process {pid}, was stopped by a signal: {advice}")
        late = [host for host, since in self._stopped_since.items() if now - since > limit]
        return self._lose({host: f"the agent on {host} was stopped by a signal for {limit:g} s" for host in late})

    def _lose(self, reasons: Mapping[str, str]) -> list[Loss]:
        """Count hosts as lost, each for its reason, and close the channels that lead to no other."""
        for host in reasons:
            self._last_heard.pop(host, None)
        for channel in list(self._watched.values()) if reasons else ():
            if reasons.keys() >= set(channel.hosts):
                self._cut_off(channel)
        return [Loss((host,), why) for host, why in reasons.items()]

    def give_up(self, hosts: Collection[str]) -> None:
        """Wait for none of these hosts when their channels are closed."""
        for channel in self._watched.values():
            if set(hosts).issuperset(channel.hosts):
                channel.is_open = False

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(text)

    def pop_notes(self) -> list[str]:
        """Return what a person should know of the hosts, each once."""
        notes, self._notes = self._notes, []
        return notes + self.cluster.transport.pop_notes()

    def read_signals(self) -> list[int]:
        """Return the signals that have come; Ctrl-Z has suspended this process, and it goes on."""
        numbers = self._signals.read()
        if SUSPEND in numbers:
            self._suspend()
        return [number for number in numbers if number != SUSPEND]

    def wait_for_signal(self, seconds: float) -> int | None:
        """Wait so long for a signal that asks for the end, and return it."""
        poll = select.poll()
        poll.register(self._signals.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)
        return next((number for number in self.read_signals() if number not in ASKING), None)

    def _suspend(self) -> None:
        """Ctrl-Z: tell the agents that the silence is meant, and stop until somebody continues this process."""
        self.send({"to": "*", "do": "pause"})
        for channel in self._watched.values():
            channel.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.send({"to": "*", "do": "resume"})

    def close(self) -> None:
        """End all agents, and whatever they still run."""
        self._poll.close()
        self.cluster.close()
