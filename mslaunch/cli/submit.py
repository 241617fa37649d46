"""A job for a queue: its folder is made, its script submitted, and then this process only follows it."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mslaunch.cli.console.console import Screen, ShownFile, verdict_text
from mslaunch.cli.console.describe import describe_end
from mslaunch.cli.parsing import common
from mslaunch.errors import signal_code
from mslaunch.launcher import runners
from mslaunch.launcher.pipeline import PlannedJob
from mslaunch.run.find import arguments_for
from mslaunch.run.record import ENDED, RunRecord
from mslaunch.run.run import Run
from mslaunch.text import first_line
from mslaunch.transports.base import JobQueue

if TYPE_CHECKING:
    from mslaunch.cli.watch.process import ViewProcess

POLL = 0.2
LAST_WORDS = 60.0


def submit(planned: PlannedJob, queue: JobQueue, detach: bool, as_json: bool, view: ViewProcess | None = None) -> int:
    """Submit a planned job; follow it to its end unless it is to be left alone."""
    received: list[int] = []  # noted until there is time for it: a job that is in the queue must not be forgotten
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    with queue.guard(detach):
        run, job = runners.submit(planned, queue)
        if detach and not received:
            document = {"run_id": run.run_id, "run_dir": str(run.path), f"{planned.plan.transport}_job": job}
            attach = f"mslaunch attach {arguments_for(run.folder, os.environ)}"
            text = f"{run.run_id} is {queue.label} job {job}. Follow it with: {attach}"
            print(json.dumps(document) if as_json else text)
            return 0
        output = 2 if as_json else 1
        screen = view.cover(run.path) if view else Screen(output)
        try:
            final = _Follower(run, queue, job, received, screen).follow(planned.plan.transport)
        finally:
            screen.uncover()
    if as_json:
        common.print_json(final.to_dict())
    if received:
        return signal_code(received[-1])
    return final.exit_code if final.exit_code is not None else 1


class _Follower:
    """Shows what the launcher in the job writes. Ctrl-C cancels the job; the end of this process does not."""

    def __init__(self, run: Run, queue: JobQueue, job: str, received: list[int], screen: Screen) -> None:
        self.run = run
        self.queue = queue
        self.job = job
        self.name = f"{queue.label} job {job}"
        self.received = received
        self.screen = screen
        self.log = ShownFile(run.follow_launcher(), screen)
        self.reason = ""

    def follow(self, transport: str) -> RunRecord:
        """Follow the job to its end, and say how it ended where its launcher could not."""
        self._say(f"run {self.run.run_id} is {self.name}; Ctrl-C cancels it")
        while (now := self._look()).state not in ENDED:
            if self.received:
                self._say(f"cancelling {self.name}")
                for number in (signal.SIGINT, signal.SIGTERM):  # whoever asks again does not want to wait
                    signal.signal(number, signal.SIG_DFL)
                self.run.stop()
                now = self.run.record
                break
            if not self.log.show() and now.state == "queued":
                self._explain_waiting()
            time.sleep(POLL)
        with suppress(OSError):
            self.run.save(now)  # what only the queue knew, it forgets
        self.log.finish()
        if self.screen.uncover():  # the view has hidden what the launcher wrote
            self._say(describe_end(now))
            self.screen.write(verdict_text(now, self.screen.is_terminal))
        elif now.verdict is not None and now.verdict.cause == transport:
            self._say(first_line(now.verdict.summary))
            self._say(now.verdict.advice or "")
        elif not self.run.folder.launcher_log.exists():
            self._say(describe_end(now, 0.0))
        self.screen.close()
        return now

    def _look(self) -> RunRecord:
        """How the run stands. One that has ended has its last words still to say, or the queue may start it again."""
        now = self.run.record
        if now.state not in ENDED or self.received:
            return now
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and (seen := self.queue.state(self.job, POLL)) and seen.state == "running":
            if seen.is_finishing and now.state != "stopped":
                break
            self.log.show()
            time.sleep(POLL)
        return self.run.record

    def _explain_waiting(self) -> None:
        seen = self.queue.state(self.job)
        if seen is not None and seen.reason not in ("", self.reason):
            self.reason = seen.reason
            self._say(f"{self.name} waits: {seen.reason}")

    def _say(self, line: str) -> None:
        self.screen.write(f"mslaunch: {line}\n")
