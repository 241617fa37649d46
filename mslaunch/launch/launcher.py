"""Executes a plan: opens the channels, passes events to the story and its orders to the agents, keeps the record."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.launch import record
from mslaunch.launch.attempts import Again, Means, Replan, prepare_next
from mslaunch.launch.cluster import Cluster
from mslaunch.launch.conductor import TICK, Attempt, Observer
from mslaunch.launch.luggage import Luggage
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.signals import ASKING, Signals
from mslaunch.launch.story import LOST, Failure, Story
from mslaunch.launch.transport import Pings
from mslaunch.launch.verdict import make_verdict
from mslaunch.plan.model import Plan
from mslaunch.plan.ranges import format_ranges


def execute(
    plan: Plan,
    folder: RunFolder,
    observe: Observer,
    environment: Mapping[str, str],
    cluster: Cluster,
    replan: Replan | None = None,
    attempts: tuple[dict[str, Any], ...] = (),
) -> record.RunRecord:
    """Run a job to its end on connected hosts, with as many attempts as it is allowed, and return its record."""
    began = time.time()
    now = replace(record.queued(plan, began), state="running", attempts=attempts)
    with Signals() as signals, EventLog(folder.events) as events:
        _save(folder, now)
        luggage = Luggage(cluster, folder, plan.run_dir)
        with Pings(cluster.channels):
            try:
                while True:
                    attempt = Attempt(plan, cluster, luggage, signals, observe, events.write, began)
                    attempt.on_change = partial(_save_progress, folder, now)
                    story = attempt.run(environment)
                    now = conclude(now, story, folder)
                    means = Means(partial(attempt.free_port, plan.transport), replan)
                    again = prepare_next(plan, now, folder, story.hosts_lost, means)
                    if again is None:
                        attempt.take_home(tidy=True)
                        attempt.tell({"ev": "home"})
                        if now.state == "failed" and plan.attempt < plan.restarts.limit:
                            story.notes.append("not started again: a restart would not mend this failure")
                            attempt.tell({"ev": "waiting", "seconds": 0.0})
                        break
                    now = replace(now, attempts=(*now.attempts, again.summary))
                    if number := _pause(again, attempt):
                        now = replace(now, state="stopped", exit_code=128 + number, verdict=None)
                        break
                    plan = again.plan
                    now = begun_again(now, plan)
            except BaseException:
                now = replace(now, state="failed", ended=record.iso(time.time()), exit_code=1)
                raise
            finally:
                for channel in cluster.channels:
                    channel.send({"to": "*", "do": "bye"})  # ends whatever is left
                    channel.close()
                _save(folder, now)
    return now


def begun_again(now: record.RunRecord, plan: Plan) -> record.RunRecord:
    """The record at the start of a further attempt, which may have fewer ranks."""
    return replace(now, state="running", world_size=plan.world_size, ended=None, exit_code=None, verdict=None)


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
            if number not in ASKING:
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
