"""One attempt: passes the agents' events to the story, and the story's orders to the agents."""

from __future__ import annotations

import select
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mslaunch.launch.check import find_port
from mslaunch.launch.cluster import Cluster
from mslaunch.launch.facts import choose_port
from mslaunch.launch.luggage import Luggage
from mslaunch.launch.signals import Signals
from mslaunch.launch.story import Order, Story
from mslaunch.launch.transport import Channel
from mslaunch.launch.watches import Watches
from mslaunch.plan.model import Plan, to_dict

TICK = 0.5

Observer = Callable[[dict[str, Any], Story], None]


class Attempt:
    """One plan, carried out by the agents behind the channels."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        luggage: Luggage,
        signals: Signals,
        observe: Observer,
        write: Callable[[dict[str, Any]], None],
        job_began: float,
    ) -> None:
        self.plan = plan
        self.cluster = cluster
        self.luggage = luggage
        self.channels = {channel.fileno(): channel for channel in cluster.channels if channel.is_open}
        self.heard: dict[str, float] = {}
        self.signals = signals
        self.show = observe
        self.write = write
        self.on_change: Callable[[Story], None] = lambda _: None
        self.story = Story(plan, time.time())
        self.watches = Watches(self.story, job_began)
        self._changed = False
        self._saved = 0.0

    def run(self, environment: Mapping[str, str]) -> Story:
        """Start everything and follow it until nothing is left."""
        self.luggage.send(self.plan)
        wanted = {host.name for host in self.plan.hosts}
        self.channels = {end: one for end, one in self.channels.items() if wanted & set(one.hosts)}
        for channel in self.channels.values():
            for host in wanted & set(channel.hosts):
                channel.send(start_order(self.plan, host, environment))
                self.heard[host] = time.monotonic()
        while not self.story.over:
            self.listen()
            self.miss()
            self.luggage.ask_meanwhile(time.monotonic())
            if self._changed and time.monotonic() - self._saved >= TICK:
                self._changed, self._saved = False, time.monotonic()
                self.on_change(self.story)
            self.act(self.watches.look(time.time()))
            self.tell({"ev": "tick", "time": time.time()})
        self.take_home(tidy=False)
        return self.story

    def listen(self) -> None:
        """Wait a moment for signals and for what the agents have to say."""
        poll = select.poll()
        for end in (self.signals.fileno(), *self.channels):
            poll.register(end, select.POLLIN)
        for end, _ in poll.poll(TICK * 1000):
            if end == self.signals.fileno():
                self.hear_signals()
            elif not self.hear(self.channels[end]):
                del self.channels[end]

    def miss(self) -> None:
        """Notice hosts that have fallen silent: dead, or cut off. A local agent cannot be."""
        if self.plan.transport == "local":
            return
        limit = self.plan.limits.lost_after
        silent = [host for host, when in self.heard.items() if time.monotonic() - when > limit]
        for host in silent:
            del self.heard[host]
            self.act(self.story.host_lost((host,), time.time(), f"nothing heard from {host} for {limit:g} s"))
        for end, channel in list(self.channels.items()):
            if silent and set(channel.hosts) <= set(silent):
                del self.channels[end]
                channel.close()

    def free_port(self, transport: str, host: str) -> int:
        """Find a port for the scheduler of a further attempt, on the host that it will run on."""
        if transport == "local":
            return choose_port(None)
        return find_port(list(self.channels.values()), host)

    def take_home(self, tidy: bool) -> None:
        """Collect the logs of hosts that do not write them here; a host that falls silent meanwhile is left."""
        there = {host for channel in self.channels.values() for host in channel.hosts}
        self.luggage.ask(there, tidy)
        for host in self.luggage.waiting:
            self.heard[host] = time.monotonic()
        while self.luggage.waiting & {host for channel in self.channels.values() for host in channel.hosts}:
            self.listen()
            self.miss()
        self.story.notes += self.luggage.notes() if tidy else []

    def hear_signals(self) -> None:
        for number in self.signals.read():
            event = {"ev": "signal", "signal": number, "time": time.time()}
            self.write(event)
            self.act(self.story.signalled(number))
            self.tell(event)

    def hear(self, channel: Channel) -> bool:
        """Take what has come from a channel; return whether it is still open."""
        messages = channel.receive()
        if messages is None:
            for host in channel.hosts:
                self.heard.pop(host, None)
            self.act(self.story.host_lost(channel.hosts, time.time()))
            self.tell({"ev": "closed", "host": channel.hosts[0], "time": time.time()})
            return False
        for event in messages:
            self.heard[event["host"]] = time.monotonic()
            if self.luggage.take(event, channel):
                continue
            event["time"] -= self.cluster.skew.get(event["host"], 0.0)
            if event["ev"] == "lines":
                # Once they are on the screen, the agent may send more: the log itself is the buffer.
                event["shown"] = partial(channel.send, {"to": event["host"], "do": "shown", "bytes": event["bytes"]})
            elif event["ev"] != "pulse":
                self._changed = True
                self.write(event)
            self.act(self.story.see(event))
            if event["ev"] == "stacks" and self.story.groups is not None:
                self.write({"ev": "stacks-taken", "groups": [group.words() for group in self.story.groups]})
            self.tell(event)
        return True

    def act(self, orders: list[Order]) -> None:
        for order in orders:
            for channel in self.channels.values():
                channel.send(order.message())

    def tell(self, event: dict[str, Any]) -> None:
        """Show an event. Whatever goes wrong there, the job goes on."""
        try:
            self.show(event, self.story)
        except Exception:
            self.show = lambda *_: None
            self.write({"ev": "console-lost", "traceback": traceback.format_exc()})


def start_order(plan: Plan, host: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What one host's agent has to know to start its part."""
    whole = to_dict(plan)
    return {
        "to": host,
        "do": "run",
        "run_dir": plan.run_dir,
        "attempt": plan.attempt,
        "env": {**{name: environment[name] for name in plan.carried}, **whole["env"]},
        "unset": plan.unset,
        "secrets": {name: environment[name] for name in plan.secrets},
        "setup": plan.setup,
        "tail": plan.tail,
        "lost_after": plan.limits.lost_after,
        "grace": plan.limits.grace,
        "answers": plan.limits.stall_timeout is not None or plan.transport != "local",
        "processes": [process for process in whole["processes"] if process["host"] == host],
    }
