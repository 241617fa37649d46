"""Executes a plan: opens the channels, passes events to the story and its orders to the agents, keeps the record."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from mslaunch.launch import identity, record
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.story import Order, Story
from mslaunch.launch.transport import TRANSPORTS, Channel
from mslaunch.launch.verdict import make_verdict
from mslaunch.plan.model import Plan, to_dict

PING_EVERY = 2.0
LOST_AFTER = 10.0
TICK = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Observer = Callable[[dict[str, Any], Story], None]


def execute(plan: Plan, folder: RunFolder, observe: Observer, environment: Mapping[str, str]) -> record.RunRecord:
    """Run one attempt to its end and return its record."""
    now = record.queued(plan, time.time())
    now = replace(now, state="running", launcher=identity.this_process())
    record.save(folder, now)
    story = Story(plan)
    with Signals() as signals, folder.events.open("a", encoding="utf-8", buffering=1) as events:
        channels = TRANSPORTS[plan.transport](plan.hosts, str(folder.bundle))
        with Pings(channels):
            try:
                _start(plan, channels, environment)
                _follow(story, channels, signals, observe, events.write)
            finally:
                for channel in channels:
                    channel.send({"to": "*", "do": "bye"})
                    channel.close()
    final = _close(now, story, folder)
    record.save(folder, final)
    return final


def _start(plan: Plan, channels: list[Channel], environment: Mapping[str, str]) -> None:
    whole = to_dict(plan)
    for channel in channels:
        for host in channel.hosts:
            order = {
                "to": host,
                "do": "run",
                "run_id": plan.run_id,
                "run_dir": plan.run_dir,
                "env": whole["env"],
                "unset": plan.unset,
                "secrets": {name: environment[name] for name in plan.secrets},
                "setup": plan.setup,
                "tail": plan.tail,
                "lost_after": LOST_AFTER,
                "processes": [process for process in whole["processes"] if process["host"] == host],
            }
            channel.send(order)


def _follow(
    story: Story, channels: list[Channel], signals: Signals, observe: Observer, write: Callable[[str], Any]
) -> None:
    poll = select.poll()
    open_channels = {channel.fileno(): channel for channel in channels}
    for end in (signals.fileno(), *open_channels):
        poll.register(end, select.POLLIN)

    def carry_out(orders: list[Order]) -> None:
        for order in orders:
            for channel in channels:
                channel.send(order.message())

    while not story.over:
        ready = poll.poll(TICK * 1000)
        if not ready:
            observe({"ev": "tick"}, story)
        for end, _ in ready:
            if end == signals.fileno():
                for number in signals.read():
                    event = {"ev": "signal", "signal": number, "time": time.time()}
                    write(json.dumps(event) + "\n")
                    carry_out(story.interrupted(number))
                    observe(event, story)
                continue
            channel = open_channels[end]
            messages = channel.receive()
            if messages is None:
                poll.unregister(end)
                messages = []
                carry_out(story.host_lost(channel.hosts, time.time()))
                observe({"ev": "closed", "host": channel.hosts[0], "time": time.time()}, story)
            for event in messages:
                if event["ev"] != "lines":
                    write(json.dumps(event) + "\n")
                carry_out(story.see(event))
                observe(event, story)


def _close(now: record.RunRecord, story: Story, folder: RunFolder) -> record.RunRecord:
    state, exit_code = story.outcome()
    failure = story.first_failure() if state == "failed" else None
    return replace(
        now,
        state=state,
        ended=record.iso(time.time()),
        exit_code=exit_code,
        ranks=tuple(story.ranks[rank] for rank in sorted(story.ranks)),
        verdict=make_verdict(failure, story.ranks, folder) if failure else None,
    )


class Signals:
    """Signals as something to wait for: handlers only enqueue, the loop acts."""

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def read(self) -> list[int]:
        return [number for number in os.read(self._read, 4096) if number in _SIGNALS]


class Pings:
    """Tells the agents every two seconds that the launcher lives, from a thread that no stalled terminal can stall."""

    def __init__(self, channels: list[Channel]) -> None:
        self._channels = channels
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PING_EVERY):
            for channel in self._channels:
                channel.send({"to": "*", "do": "ping"})
