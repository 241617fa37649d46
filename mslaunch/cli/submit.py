"""A job for Slurm: its folder is made, its script submitted, and then this process only follows it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from contextlib import suppress
from types import FrameType

from mslaunch.agent.follow import Follower
from mslaunch.cli.describe import describe_end
from mslaunch.cli.screen import Screen
from mslaunch.errors import MslaunchError
from mslaunch.launch import history, record, slurm_jobs
from mslaunch.launch.run_folder import RunFolder, create, write_atomically
from mslaunch.plan.model import Plan
from mslaunch.plan.slurm import JOB

POLL = 0.2
LAST_WORDS = 60.0


def submit(plan: Plan, detach: bool, as_json: bool) -> int:
    """Submit a planned job; follow it to its end unless it is to be left alone."""
    asked = _Asked()  # from here on: a job that is in the queue must not be forgotten
    folder = create(plan)
    try:
        record.save(folder, record.queued(plan, time.time()))  # before it is submitted: it may start at once
        job = slurm_jobs.submit(folder.path / JOB)
        write_atomically(folder.slurm_job, job)
    except (MslaunchError, OSError):
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    if detach and asked.number is None:
        told = {"run_id": plan.run_id, "run_dir": plan.run_dir, "slurm_job": job}
        words = f"{plan.run_id} is Slurm job {job}. Follow it with: mslaunch logs -f {plan.run_id}"
        print(json.dumps(told) if as_json else words)
        return 0
    return _Watch(folder, plan, job, as_json, asked).run()


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


class _Watch:
    """Shows what the launcher in the job writes. Ctrl-C cancels the job; the end of this process does not."""

    def __init__(self, folder: RunFolder, plan: Plan, job: str, as_json: bool, asked: _Asked) -> None:
        self.folder = folder
        self.plan = plan
        self.job = job
        self.as_json = as_json
        self.screen = Screen(2 if as_json else 1)
        self.log = Follower(str(folder.launcher_log))
        self.asked = asked
        self.waiting = ""

    def run(self) -> int:
        self._say(f"run {self.plan.run_id} is Slurm job {self.job}; Ctrl-C cancels it")
        while (now := self._look()).state not in record.ENDED:
            if self.asked.number is not None:
                now = self._cancel()
                break
            if not self._show() and now.state == "queued":
                self._tell_why_it_waits()
            time.sleep(POLL)
        self._show()
        return self._close(now)

    def _look(self) -> record.RunRecord:
        """How the run stands. One that has ended has its last words still to say, or Slurm may queue it again."""
        now = record.load(self.folder)
        if now.state not in record.ENDED or self.asked.number is not None:
            return now
        ending = ("RUNNING", "COMPLETING") if now.state == "stopped" else ("RUNNING",)
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and (seen := slurm_jobs.look(self.job, POLL)) and seen.state in ending:
            self._show()
            time.sleep(POLL)
        return record.load(self.folder)

    def _cancel(self) -> record.RunRecord:
        self._say(f"cancelling Slurm job {self.job}")
        self.asked.no_more()
        return history.stop(self.folder, self.plan.limits.grace + 20)

    def _tell_why_it_waits(self) -> None:
        seen = slurm_jobs.look(self.job)
        if seen is not None and seen.reason not in ("", "None", self.waiting):
            self.waiting = seen.reason
            self._say(f"Slurm job {self.job} waits: {seen.reason}")

    def _show(self) -> bool:
        shown = False
        while self.log.behind():
            lines = self.log.read()
            shown = shown or bool(lines)
            self.screen.write("".join(f"{line}\n" for line in lines))
        return shown

    def _close(self, final: record.RunRecord) -> int:
        with suppress(OSError):
            record.save(self.folder, final)  # what only Slurm knew, it forgets
        self.screen.write("".join(f"{line}\n" for line in self.log.rest()))
        if final.verdict is not None and final.verdict["cause"] == "slurm":
            self._say(final.verdict["summary"])
            self._say(final.verdict["advice"])
        elif not self.folder.launcher_log.exists():
            self._say(describe_end(final, 0.0))
        self.screen.close()
        if self.as_json:
            print(json.dumps(final.to_dict(), indent=1))
        if self.asked.number is not None:
            return 128 + self.asked.number
        return final.exit_code if final.exit_code is not None else 1

    def _say(self, line: str) -> None:
        self.screen.write(f"mslaunch: {line}\n")
