"""Executes a plan: opens the channels, passes events to the story and its orders to the agents, keeps the record."""

from __future__ import annotations

import json
import select
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.launch import record
from mslaunch.launch.attempts import Again, prepare_next
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.signals import STACKS, Signals
from mslaunch.launch.story import LOST, Failure, Order, Story
from mslaunch.launch.transport import TRANSPORTS, Channel, Pings
from mslaunch.launch.verdict import make_verdict
from mslaunch.launch.watches import Watches
from mslaunch.plan.model import Plan, to_dict
from mslaunch.plan.ranges import format_ranges

TICK = 0.5

Observer = Callable[[dict[str, Any], Story], None]


def execute(plan: Plan, folder: RunFolder, observe: Observer, environment: Mapping[str, str]) -> record.RunRecord:
    """Run a job to its end, with as many attempts as it is allowed, and return its record."""
    began = time.time()
    now = replace(record.queued(plan, began), state="running")
    with Signals() as signals, EventLog(folder.events) as events:
        _save(folder, now)
        channels = TRANSPORTS[plan.transport](plan.hosts)
        with Pings(channels):
            try:
                while True:
                    attempt = Attempt(plan, channels, signals, observe, events.write, began)
                    attempt.on_change = partial(_save_progress, folder, now)
                    story = attempt.run(environment)
                    now = conclude(now, story, folder)
                    again = prepare_next(plan, now, folder)
                    if again is None:
                        if now.state == "failed" and plan.attempt < plan.restarts.limit:
                            story.notes.append("not started again: a restart would not mend this failure")
                            attempt.tell({"ev": "waiting", "seconds": 0.0})
                        break
                    now = replace(now, attempts=(*now.attempts, again.summary))
                    if number := _pause(again, attempt):
                        now = replace(now, state="stopped", exit_code=128 + number, verdict=None)
                        break
                    plan, now = again.plan, replace(now, state="running", ended=None, exit_code=None, verdict=None)
            except BaseException:
                now = replace(now, state="failed", ended=record.iso(time.time()), exit_code=1)
                raise
            finally:
                for channel in channels:
                    channel.send({"to": "*", "do": "bye"})  # ends whatever is left
                    channel.close()
                _save(folder, now)
    return now


def _save_progress(folder: RunFolder, now: record.RunRecord, story: Story) -> None:
    """Let `mslaunch status` see how the ranks stand."""
    _save(folder, replace(now, ranks=tuple(story.ranks[rank] for rank in sorted(story.ranks))))


def _save(folder: RunFolder, now: record.RunRecord) -> None:
    # A full disk must not end a job, nor hide how it ended: the screen and the exit code still tell.
    with suppress(OSError):
        record.save(folder, now)


def _pause(again: Again, attempt: Attempt) -> int | None:
    """Wait before the next attempt; return the signal that ended the wait, if one did."""
    attempt.story.notes.append(again.note)
    attempt.tell({"ev": "restart"})
    poll = select.poll()
    poll.register(attempt.signals.fileno(), select.POLLIN)
    until = time.monotonic() + again.pause
    while (left := until - time.monotonic()) > 0:
        poll.poll(min(left, TICK) * 1000)
        for number in attempt.signals.read():
            if number != STACKS:
                return number
        attempt.tell({"ev": "waiting", "seconds": left})
    return None


def conclude(now: record.RunRecord, story: Story, folder: RunFolder) -> record.RunRecord:
    """Put an attempt's outcome into the record."""
    unended = [rank for rank, found in story.ranks.items() if found.exit_code != 0]
    if story.interrupt is None and not story.failures and unended:
        host, ranks = story.plan.hosts[0].name, format_ranges(unended)
        summary = f"the agent on {host} ended before rank {ranks} had"
        story.fail(Failure(time.time(), None, host, LOST, None, "host lost", summary))
    verdict = make_verdict(story, folder) if story.interrupt is None else None
    if story.interrupt is not None:
        state, exit_code = "stopped", 128 + story.interrupt
    elif verdict is not None:
        state, exit_code = "failed", verdict["exit_code"] or story.failures[0].exit_code
    else:
        state, exit_code = "succeeded", 0
    return replace(
        now,
        state=state,
        ended=record.iso(time.time()),
        exit_code=exit_code,
        ranks=tuple(story.ranks[rank] for rank in sorted(story.ranks)),
        verdict=verdict,
    )


class EventLog:
    """events.jsonl: everything that happened but the ranks' own lines. A full disk loses events, never the job."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._file.close()

    def write(self, event: dict[str, Any]) -> None:
        with suppress(OSError):
            self._file.write(json.dumps(event) + "\n")


class Attempt:
    """One plan, carried out by the agents behind the channels."""

    def __init__(
        self,
        plan: Plan,
        channels: list[Channel],
        signals: Signals,
        observe: Observer,
        write: Callable[[dict[str, Any]], None],
        job_began: float,
    ) -> None:
        self.plan = plan
        self.channels = {channel.fileno(): channel for channel in channels}
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
        for channel in self.channels.values():
            for host in channel.hosts:
                channel.send(start_order(self.plan, host, environment))
        poll = select.poll()
        for end in (self.signals.fileno(), *self.channels):
            poll.register(end, select.POLLIN)
        while not self.story.over:
            ready = [end for end, _ in poll.poll(TICK * 1000)]
            if self.signals.fileno() in ready:
                self.hear_signals()
            for end in ready:
                if end in self.channels and not self.hear(self.channels[end]):
                    poll.unregister(end)
            if self._changed and time.monotonic() - self._saved >= TICK:
                self._changed, self._saved = False, time.monotonic()
                self.on_change(self.story)
            self.act(self.watches.look(time.time()))
            self.tell({"ev": "tick", "time": time.time()})
        return self.story

    def hear_signals(self) -> None:
        for number in self.signals.read():
            event = {"ev": "signal", "signal": number, "time": time.time()}
            self.write(event)
            self.act(self.story.ask_for_stacks() if number == STACKS else self.story.interrupted(number))
            self.tell(event)

    def hear(self, channel: Channel) -> bool:
        """Take what has come from a channel; return whether it is still open."""
        messages = channel.receive()
        if messages is None:
            self.act(self.story.host_lost(channel.hosts, time.time()))
            self.tell({"ev": "closed", "host": channel.hosts[0], "time": time.time()})
            return False
        for event in messages:
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
        "env": whole["env"],
        "unset": plan.unset,
        "secrets": {name: environment[name] for name in plan.secrets},
        "setup": plan.setup,
        "tail": plan.tail,
        "lost_after": plan.limits.lost_after,
        "watches_output": plan.limits.stall_timeout is not None,
        "processes": [process for process in whole["processes"] if process["host"] == host],
    }
