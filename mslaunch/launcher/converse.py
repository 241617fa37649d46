"""Asking all hosts the same thing at once, before anything runs on them."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mslaunch.errors import HostsNotReady
from mslaunch.launcher.event_check import Rejected, receive_checked
from mslaunch.shared.running_clock import RunningClock
from mslaunch.transports.base import Channel, ignore
from mslaunch.transports.streams import Waiting


def converse(
    channels: Sequence[Channel],
    orders: Mapping[str, dict[str, Any]],
    answer: str,
    seconds: float,
    tell: Callable[[str], None] = ignore,
) -> dict[str, dict[str, Any]]:
    """Send each host its order and wait for all answers, as long as hosts answer; those that do not are named."""
    for channel in channels:
        for host in channel.hosts:
            if host in orders:
                channel.send({"to": host, **orders[host]})
    conversation = _Conversation(channels, set(orders), answer)
    clock = RunningClock()
    progress = clock.now
    waiting = Waiting(tell)
    while conversation.waiting and clock.now - progress < seconds:
        if conversation.receive():
            progress = clock.now
        waiting.look(clock.advance(), conversation.waiting)
    silent = {host: f"no answer within {seconds:.0f} s. {one.hint}" for one in channels for host in one.hosts}
    troubles = {**dict.fromkeys(orders, "it is no longer connected."), **silent, **conversation.troubles}
    if missing := sorted(orders.keys() - conversation.answers.keys()):
        raise HostsNotReady([f"{host}: {troubles[host]}" for host in missing])
    return conversation.answers


class _Conversation:
    """Hosts that have answered, that have still to answer, and that will not."""

    def __init__(self, channels: Sequence[Channel], hosts: set[str], answer: str) -> None:
        self.waiting = hosts
        self.answers: dict[str, dict[str, Any]] = {}
        self.troubles: dict[str, str] = {}
        self._answer = answer
        self._channels = {channel.fileno(): channel for channel in channels}
        self._poll = select.poll()
        for end in self._channels:
            self._poll.register(end, select.POLLIN)

    def receive(self) -> bool:
        """Wait a moment for what hosts send; return whether something has come."""
        has_come = False
        for end, _ in self._poll.poll(200):
            channel = self._channels[end]
            try:
                events = receive_checked(channel)
            except Rejected as rejected:
                self._give_up(channel, f"it {rejected}, so it cannot be trusted.")
                continue
            if events is None:
                self._give_up(channel, channel.why_it_ended())
                continue
            has_come = has_come or bool(events)
            for event in events:
                if event["ev"] == self._answer:
                    self.answers[event["host"]] = {**event, "heard": time.time()}
                    self.waiting.discard(event["host"])
        return has_come

    def _give_up(self, channel: Channel, why: str) -> None:
        self._poll.unregister(channel.fileno())
        self.waiting.difference_update(channel.hosts)
        for host in channel.hosts:
            self.answers.pop(host, None)
            self.troubles[host] = why
