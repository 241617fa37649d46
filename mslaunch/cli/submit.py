"""A job for a queue: its folder is made, its script submitted, and then this process only follows it."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from mslaunch.cli.console.console import Screen, ShownFile, verdict_text
from mslaunch.cli.console.describe import describe_end
from mslaunch.errors import signal_code
from mslaunch.launcher import runners
from mslaunch.launcher.pipeline import PlannedJob
from mslaunch.plan.model import Plan
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
    asked = _Asked()  # from here on: a job that is in the queue must not be forgotten
    with queue.guard(detach):
        run, job = runners.submit(planned, queue)
        if detach and asked.number is None:
            told = {"run_id": run.run_id, "run_dir": str(run.path), f"{planned.plan.transport}_job": job}
            attach = f"mslaunch attach {arguments_for(run.folder, os.environ)}"
            words = f"{run.run_id} is {queue.label} job {job}. Follow it with: {attach}"
            print(json.dumps(told) if as_json else words)
            return 0
        screen = view.cover(run.path) if view else Screen(2 if as_json else 1)
        try:
            return _Follower(run, planned.plan, queue, job, as_json, asked, screen).run()
        finally:
            screen.uncover()


class _Asked:
    """Ctrl-C and SIGTERM, noted until there is time for them."""

    def __init__(self) -> None:
        self.number: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number

    def no_more(self) -> None:
        """Whoever asks again does not want to wait."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


class _Follower:
    """Shows what the launcher in the job writes. Ctrl-C cancels the job; the end of this process does not."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        queue: JobQueue,
        job: str,
        as_json: bool,
        asked: _Asked,
        screen: Screen,
    ) -> None:
        self.followed = run
        self.folder = run.folder
        self.plan = plan
        self.queue = queue
        self.job = job
        self.name = f"{queue.label} job {job}"
        self.as_json = as_json
        self.screen = screen
        self.log = ShownFile(run.follow_launcher(), self.screen)
        self.asked = asked
        self.waiting = ""

    def run(self) -> int:
        self._say(f"run {self.plan.run_id} is {self.name}; Ctrl-C cancels it")
        while (now := self._look()).state not in ENDED:
            if self.asked.number is not None:
                now = self._cancel()
                break
            if not self.log.show() and now.state == "queued":
                self._tell_why_it_waits()
            time.sleep(POLL)
        return self._close(now)

    def _look(self) -> RunRecord:
        """How the run stands. One that has ended has its last words still to say, or the queue may start it again."""
        now = self.followed.record
        if now.state not in ENDED or self.asked.number is not None:
            return now
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and (seen := self.queue.state(self.job, POLL)) and seen.state == "running":
            if seen.is_finishing and now.state != "stopped":
                break
            self.log.show()
            time.sleep(POLL)
        return self.followed.record

    def _cancel(self) -> RunRecord:
        self._say(f"cancelling {self.name}")
        self.asked.no_more()
        self.followed.stop()
        return self.followed.record

    def _tell_why_it_waits(self) -> None:
        seen = self.queue.state(self.job)
        if seen is not None and seen.reason not in ("", self.waiting):
            self.waiting = seen.reason
            self._say(f"{self.name} waits: {seen.reason}")

    def _close(self, final: RunRecord) -> int:
        with suppress(OSError):
            self.followed.save(final)  # what only the queue knew, it forgets
        self.log.finish()
        if self.screen.uncover():  # the view has hidden what the launcher wrote
            self._say(describe_end(final))
            self.screen.write(verdict_text(final, self.screen.is_terminal))
        elif final.verdict is not None and final.verdict.cause == self.plan.transport:
            self._say(first_line(final.verdict.summary))
            self._say(final.verdict.advice or "")
        elif not self.folder.launcher_log.exists():
            self._say(describe_end(final, 0.0))
        self.screen.close()
        if self.as_json:
            print(json.dumps(final.to_dict(), indent=1))
        if self.asked.number is not None:
            return signal_code(self.asked.number)
        return final.exit_code if final.exit_code is not None else 1

    def _say(self, line: str) -> None:
        self.screen.write(f"mslaunch: {line}\n")
