"""What an attempt decides: that something has failed, and what the agents are to do about it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from mslaunch.diagnose.verdict import signal_name
from mslaunch.errors import ExitCode, signal_code
from mslaunch.plan.model import Process
from mslaunch.ranges import format_ranges
from mslaunch.shared import layout, messages
from mslaunch.worker.exit_recorder import CRASHES


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong by itself, and when."""

    time: float
    rank: int | None
    host: str
    exit_code: int
    signal: int | None
    cause: str
    summary: str
    log: str | None = None
    out_of_memory: bool = False
    child: str | None = None
    """A process of the rank that was killed before it, and by which signal."""
    child_signal: int | None = None
    kernel: str | None = None
    """What the kernel shows of kills for lack of memory, where SIGKILL has ended the rank or its process."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the launcher should send to every agent."""

    do: str
    grace: float = 0.0

    def message(self) -> messages.StopOrder:
        return {"to": "*", "do": self.do, "grace": self.grace}


def counted(
    event: messages.Exited, had_failed: bool, had_ended_well: bool
) -> tuple[int | None, int | None, str | None]:
    """Return the exit code and the signal that count for a rank, and what a person should know about them."""
    code, number, crashed = event["code"], event["signal"], event.get("crashed")
    if had_failed and number in (signal.SIGTERM, signal.SIGKILL):
        code, number = 1, None  # it had failed by itself; only its teardown was cut short
    if had_ended_well and number:
        crashed, code, number = number, 0, None
    if crashed not in CRASHES:
        return code, number, None
    # MindSpore 2.10 may crash in its own clean-up, when a peer closes its connection at that moment.
    how = f"by {signal_name(crashed)} while MindSpore was taken apart; its script had ended well before"
    return code, number, f"rank {event['rank']} was ended {how}, so that counts"


def of_scheduler(event: messages.Exited, run_dir: str) -> Failure:
    log = f"{run_dir}/{layout.SCHEDULER}/{layout.LOG}"
    summary = "MindSpore's scheduler died"
    return Failure(event["time"], None, event["host"], ExitCode.LOST, event["signal"], "scheduler", summary, log)


def of_script(event: messages.Exited, script: Process, left: Sequence[int]) -> Failure:
    """A script has ended before the ranks that it started."""
    code = signal_code(event["signal"]) if event["signal"] else event["code"] or 1
    name = script.argv[-1].rpartition("/")[2]
    summary = f"{name} ended with code {code} before rank {format_ranges(left)} had"
    return Failure(event["time"], None, event["host"], code, event["signal"], "script", summary, script.log)
