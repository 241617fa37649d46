"""How the ranks and hosts of one attempt stand, and when they were last active. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace

from mslaunch.diagnose.verdict import signal_name
from mslaunch.run.record import RankRecord, iso
from mslaunch.shared import messages
from mslaunch.shared.processes import CRASHES


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
