"""How the ranks and hosts of one attempt stand: their ends, activity, init(), stacks and last numbers. Pure."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from mslaunch.diagnose import stacks
from mslaunch.diagnose.verdict import signal_name
from mslaunch.launcher.attempt.decisions import Order
from mslaunch.metrics.alerts import Alert, Alerts
from mslaunch.metrics.rows import Number, Row, Source, parse_values
from mslaunch.metrics.series import SIGNS_OF_STEPS, step_of
from mslaunch.plan.model import Plan
from mslaunch.run.record import RankRecord, iso
from mslaunch.shared import messages
from mslaunch.shared.processes import CRASHES
from mslaunch.text import named_ranks


@dataclass(slots=True)
class RankStates:
    """The ranks of an attempt: their records, and how far each of them is."""

    records: dict[int, RankRecord]
    running: dict[int, None]
    """Those that have not ended, in order."""
    raised: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """Ranks whose script has ended well; what may still go wrong is how Python and MindSpore are taken apart."""

    def in_order(self) -> tuple[RankRecord, ...]:
        return tuple(self.records.values())

    def read_exit(self, rank: int, event: messages.Exited, stopping: bool) -> tuple[int | None, int | None, str | None]:
        """Return the exit code and the signal that count for a rank, and what a person should know about them."""
        code, number, crashed = event["code"], event["signal"], event.get("crashed")
        if rank in self.raised and stopping and number in (signal.SIGTERM, signal.SIGKILL):
            code, number = 1, None  # it had failed by itself; only its teardown was cut short
        if rank in self.done and number:
            crashed, code, number = number, 0, None
        if crashed not in CRASHES:
            return code, number, None
        # MindSpore 2.10 may crash in its own clean-up, when a peer closes its connection at that moment.
        how = f"by {signal_name(crashed)} while MindSpore was taken apart; its script had ended well before"
        return code, number, f"rank {rank} was ended {how}, so that counts"

    def end(self, rank: int, code: int | None, number: int | None, when: float, stopped: bool) -> None:
        """Record the end of a rank; one that had raised, or ended well, was not stopped."""
        self.running.pop(rank, None)
        stopped = stopped and rank not in self.raised and code != 0
        self.records[rank] = replace(
            self.records[rank], exit_code=code, signal=number, ended=iso(when), stopped=stopped
        )

    def ended_well(self) -> list[int]:
        return [rank for rank, record in self.records.items() if record.exit_code == 0]


@dataclass(slots=True)
class HostStates:
    """The hosts of an attempt: on which something of it is left, and which were lost."""

    names: tuple[str, ...]
    busy: set[str]
    lost: set[str] = field(default_factory=set)

    def lose(self, host: str) -> bool:
        """Count a host as lost; return whether something of the attempt was left there."""
        if host not in self.busy:
            return False
        self.busy.discard(host)
        self.lost.add(host)
        return True


@dataclass(slots=True)
class ActivityTimes:
    """When ranks last started, printed, computed or ended, by a clock that only runs forward."""

    last_start: float
    last_output: float | None = None
    pulse: float = 0.0
    """When an agent last told about output."""
    silent: dict[int, float] = field(default_factory=dict)
    idle: dict[int, float] = field(default_factory=dict)
    """Seconds that a rank has neither printed nor computed, as its agent saw it after another rank had ended."""
    first_end: tuple[float, int] | None = None
    """When the first rank ended well, and which."""

    def receive_pulse(self, event: messages.Pulse, now: float) -> None:
        if self.last_output is not None:
            self.last_output = max(self.last_output, now - event["quiet"])
            self.pulse = now

    def receive(self, event: messages.Activity) -> None:
        self.silent.update({int(rank): seconds for rank, seconds in event["silent"].items()})
        self.idle.update({int(rank): seconds for rank, seconds in event["idle"].items()})

    def quiet_seconds(self) -> float:
        """For how long no rank has printed anything, by the agents' last word and not by how long ago that came."""
        return 0.0 if self.last_output is None else self.pulse - self.last_output


JOINED_EVERY = 0.2  # agents need not hear of each of 10,000 ranks that is through init()


@dataclass(slots=True)
class Joining:
    """How far each rank is on its way into the group."""

    has_others: bool
    """Whether there are agents that do not see by themselves how far the ranks of others are."""
    import_began: bool = False
    joined_sent: float | None = None
    """When agents last heard of ranks that have joined."""
    imported: set[int] = field(default_factory=set)
    """Ranks that have loaded MindSpore."""
    called: set[int] = field(default_factory=set)
    """Ranks that have called init()."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Ranks that are in init(), and since when."""
    joined: set[int] = field(default_factory=set)
    """Ranks that are through init()."""
    absent: dict[int, float] = field(default_factory=dict)
    """Ranks that have ended with code 0 without init(), and when."""

    def receive(self, event: messages.RankNote, now: float) -> list[Order]:
        """A rank imports MindSpore, has loaded it, enters init() or is through; agents hear of that now and then."""
        rank, name = event["rank"], event["ev"]
        if name == "import":
            return self._begin_import()
        if name == "imported":
            self.imported.add(rank)
            return []
        self.called.add(rank)
        if name == "joining":
            self.waiting[rank] = now
            return []
        self.waiting.pop(rank, None)
        self.joined.add(rank)
        is_recent = self.joined_sent is not None and now - self.joined_sent < JOINED_EVERY
        if not self.has_others or is_recent:
            return []
        self.joined_sent = now
        return [Order("joined")]

    def _begin_import(self) -> list[Order]:
        """The first rank that imports MindSpore needs the scheduler, wherever that is."""
        is_first = not self.import_began
        self.import_began = True
        return [Order("scheduler")] if is_first and self.has_others else []

    def end(self, rank: int, code: int | None, now: float) -> None:
        """A rank has ended: it waits no more, and others may wait for it in vain."""
        self.waiting.pop(rank, None)
        if code == 0 and rank not in self.called:
            self.absent[rank] = now

    def hopeless_since(self) -> float | None:
        """Return since when ranks wait in init() for one that has ended without it; None where none does."""
        if not self.absent or not self.waiting:
            return None
        return max(min(self.absent.values()), min(self.waiting.values()))

    def describe_absent(self) -> str:
        """Name the ranks that have ended without init(), and those that wait for them."""
        have, them = ("have", "them") if len(self.absent) > 1 else ("has", "it")
        wait = "wait" if len(self.waiting) > 1 else "waits"
        gone, left = named_ranks(sorted(self.absent)), named_ranks(sorted(self.waiting))
        return f"{gone} {have} ended without init(); {left} {wait} for {them} in init()"

    def describe_missing(self, running: Collection[int], seconds: float) -> str:
        """Say who is waited for, where ranks have been in init() for so long."""
        missing = [rank for rank in running if rank not in self.called]
        if missing:
            have = "have" if len(missing) > 1 else "has"
            return f"{named_ranks(missing)} {have} not joined after {seconds:.0f} s; the others wait in init()"
        waiting = sorted(self.waiting)
        are = "are" if len(waiting) > 1 else "is"
        which = "all ranks are" if self.waiting.keys() >= set(running) else f"{named_ranks(waiting)} {are}"
        return f"{which} in init(), which has not returned after {seconds:.0f} s"

    def describe_alone(self, ranks: int) -> str | None:
        """Say that no rank of a job that used MindSpore has called init(); None where one has, or it is not known."""
        if ranks < 2 or not self.imported or self.called:
            return None
        return f"{ranks} ranks ran, none called init(): each worked alone"


Purpose = Literal["question", "stall", "timeout"]
"""What stacks are taken for: somebody wants to see them, no rank prints anything, or the time of the job is up."""


@dataclass(slots=True)
class StackRequest:
    """The newest request; a new one replaces one that is on its way."""

    purpose: Purpose = "question"
    groups: tuple[stacks.Group, ...] | None = None
    last_looks: list[tuple[stacks.Group, ...]] = field(default_factory=list)
    """Where all ranks stood once the time of the job was up, one look after another."""
    waiting_for: set[str] = field(default_factory=set)
    frames: dict[int, tuple[stacks.StackFrame, ...]] = field(default_factory=dict)

    def ask(self, hosts: Iterable[str], purpose: Purpose) -> None:
        """Begin to wait for the stacks of these hosts; a question does not replace what they were taken for before."""
        self.purpose = purpose if self.purpose == "question" else self.purpose
        self.waiting_for = set(hosts)
        self.frames, self.groups = {}, None

    def receive(self, event: messages.Stacks) -> tuple[stacks.Group, ...] | None:
        """Add the stacks of one host; return the groups when it was the last."""
        for number, text in event["stacks"].items():
            self.frames[int(number)] = stacks.parse(text)
        self.waiting_for.discard(event["host"])
        if self.waiting_for or self.groups is not None:
            return None
        self.groups = stacks.group(self.frames)
        return self.groups


NOT_FINITE = "loss not finite"


class Numbers:
    """Takes the metrics of all hosts."""

    def __init__(self, plan: Plan) -> None:
        self._attempt = plan.attempt
        self.alerts = Alerts({int(worker.rank or 0): worker.host for worker in plan.workers})
        self._new: list[Row] = []
        self.last: dict[int, dict[str, Number]] = {}
        """The last numbers of every rank by name."""
        self.step_came: dict[int, float] = {}
        """When the last step of every rank came, by the clock of `receive`: those of hosts differ."""
        self._not_finite: dict[int, Number | None] = {}
        """Since which step the loss of a rank is NaN or infinite."""

    def receive(self, event: messages.MetricsEvent, now: float) -> list[Alert]:
        """Take what a host has told; return what a person should be told of it."""
        rows = [self._row(event["host"], row) for row in event["rows"]]
        self._new += rows
        for row in rows:
            if row.source.rank is not None:
                last = self.last.setdefault(row.source.rank, {})
                if not SIGNS_OF_STEPS.isdisjoint(row.values):
                    self.step_came[row.source.rank] = now - max(0.0, event["time"] - row.time)
                last.update(row.last_values())
                if math.isfinite(last.get("loss", 0)):
                    self._not_finite.pop(row.source.rank, None)
                else:
                    self._not_finite.setdefault(row.source.rank, step_of(last))
        return self.alerts.see(rows)

    def _row(self, host: str, row: messages.MetricRow) -> Row:
        rank = row["rank"]
        of_host = (None, None) if rank is not None else (host, row["device"])
        return Row(row["time"], Source(self._attempt, rank, *of_host), parse_values(row["values"]))

    def shown(self, preferred: int, now: float) -> tuple[dict[str, Number], float | None]:
        """Return the numbers of this rank, or of the first one that told any, and how long ago its last step came.

        With a pipeline, the last ranks tell them.
        """
        rank = preferred if self.last.get(preferred) else next(iter(self.last), preferred)
        came = self.step_came.get(rank)
        return self.last.get(rank, {}), None if came is None else now - came

    def describe_losses(self) -> list[str]:
        """Say of which ranks the last loss is not finite: with such a loss a job has learned nothing since then."""
        if not self._not_finite:
            return []
        steps = [step for step in self._not_finite.values() if step is not None]
        since = f" since step {min(steps):g}" if steps else ""
        loss = self.last[min(self._not_finite)]["loss"]
        return [f"loss is {loss}{since} ({named_ranks(self._not_finite)})"]

    def rank_ended(self, rank: int) -> None:
        self.alerts.forget(Source(self._attempt, rank))

    def pop_rows(self) -> list[Row]:
        """Return the rows that are to be kept, each once."""
        rows, self._new = self._new, []
        return rows
