"""What happened, told in order: takes the agents' events, decides what to do next and whose fault it was. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any

from mslaunch.launch.record import RankRecord, iso
from mslaunch.plan.model import Plan

LOST = 125
# A rank that raised is seen before its exit; a scheduler that dies in the same moment is a bystander.
BYSTANDER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong, and when."""

    time: float
    rank: int | None
    host: str
    exit_code: int
    signal: int | None
    cause: str
    summary: str
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What the launcher should send to every agent."""

    do: str
    grace: float = 0.0

    def message(self) -> dict[str, Any]:
        return {"to": "*", "do": self.do, "grace": self.grace}


class Story:
    """One attempt, from the first event to the last."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ranks = {int(w.rank or 0): RankRecord(int(w.rank or 0), w.host, w.device_id) for w in plan.workers}
        self.errors: dict[int, tuple[float, str]] = {}
        self.failures: list[Failure] = []
        self.interrupt: int | None = None
        self.stopping = False
        self.hosts_busy = {host.name for host in plan.hosts}
        self.joined: set[int] = set()
        self._finished = False

    @property
    def over(self) -> bool:
        return not self.hosts_busy

    def see(self, event: dict[str, Any]) -> list[Order]:
        """Take one event; return what has to be done about it."""
        handler = getattr(self, f"_on_{event['ev'].replace('-', '_')}", None)
        return handler(event) if handler else []

    def interrupted(self, number: int) -> list[Order]:
        """A signal asks for the end: the first waits for the ranks, the second does not."""
        again = self.interrupt is not None
        self.interrupt = self.interrupt or number
        self.stopping = True
        return [Order("stop", 0.0 if again else self.plan.grace)]

    def host_lost(self, hosts: tuple[str, ...], now: float) -> list[Order]:
        """A stream ended before its agents had said that nothing is left."""
        gone = [host for host in hosts if host in self.hosts_busy]
        for host in gone:
            self.hosts_busy.discard(host)
            summary = f"the agent on {host} is gone"
            self.failures.append(Failure(now, None, host, LOST, None, "host lost", summary))
        return self._stop() if gone else []

    def outcome(self) -> tuple[str, int]:
        """Return the run's state and the command's exit code."""
        if self.interrupt is not None:
            return "stopped", 128 + self.interrupt
        failure = self.first_failure()
        return ("succeeded", 0) if failure is None else ("failed", failure.exit_code)

    def first_failure(self) -> Failure | None:
        """Return the earliest failure; a scheduler or script that ended with a rank is not to blame for it."""
        ordered = sorted(self.failures, key=lambda failure: failure.time)
        if not ordered:
            return None
        ranks = [failure for failure in ordered if failure.rank is not None]
        if ranks and ordered[0].rank is None and ranks[0].time - ordered[0].time < BYSTANDER_SECONDS:
            return ranks[0]
        return ordered[0]

    def _on_started(self, event: dict[str, Any]) -> list[Order]:
        if event["role"] == "worker":
            rank = self.ranks[event["rank"]]
            self.ranks[rank.rank] = replace(rank, pid=event["pid"], started=iso(event["time"]))
        return []

    def _on_joined(self, event: dict[str, Any]) -> list[Order]:
        self.joined.add(event["rank"])
        return [Order("joined")] if len(self.plan.hosts) > 1 else []

    def _on_import(self, event: dict[str, Any]) -> list[Order]:
        del event
        return [Order("scheduler")] if len(self.plan.hosts) > 1 else []

    def _on_error(self, event: dict[str, Any]) -> list[Order]:
        """A rank has raised: it will end, though MindSpore's teardown may take it a second."""
        rank = event["rank"]
        self.errors[rank] = (event["time"], event["message"])
        return self._fail_rank(event["time"], rank, 1, None, event["message"])

    def _on_exited(self, event: dict[str, Any]) -> list[Order]:
        if event["role"] == "worker":
            return self._rank_exited(event)
        if event["role"] == "scheduler":
            return self._scheduler_exited(event)
        return self._script_exited(event)

    def _rank_exited(self, event: dict[str, Any]) -> list[Order]:
        rank, code, number = event["rank"], event["code"], event["signal"]
        if rank in self.errors and number in (signal.SIGTERM, signal.SIGKILL) and self.stopping:
            code, number = 1, None  # it had failed by itself; only its teardown was cut short
        self.ranks[rank] = replace(self.ranks[rank], exit_code=code, signal=number, ended=iso(event["time"]))
        if not self.stopping and code != 0:
            how = f"was killed by {signal.Signals(number).name}" if number else f"exited with code {code}"
            return self._fail_rank(event["time"], rank, 128 + number if number else code, number, how)
        if not self.stopping and not self._finished and all(record.ended for record in self.ranks.values()):
            self._finished = True
            return [Order("finish")]
        return []

    def _scheduler_exited(self, event: dict[str, Any]) -> list[Order]:
        if self.stopping or self._finished or event["code"] == 0 or self._all_ended():
            return []
        log = next(
            (p.log for p in self.plan.processes if p.role == "scheduler"), f"{self.plan.run_dir}/scheduler/log.txt"
        )
        summary = "MindSpore's scheduler died"
        self.failures.append(
            Failure(event["time"], None, event["host"], LOST, event["signal"], "scheduler", summary, log)
        )
        return self._stop()

    def _script_exited(self, event: dict[str, Any]) -> list[Order]:
        if self.stopping or self._finished or self._all_ended():
            return []
        script = next(p for p in self.plan.processes if p.role == "script" and p.host == event["host"])
        waiting = sum(1 for record in self.ranks.values() if not record.ended)
        code = 128 + event["signal"] if event["signal"] else event["code"] or 1
        summary = f"{script.argv[-1].rsplit('/', 1)[-1]} ended with code {code} before {waiting} ranks had"
        self.failures.append(
            Failure(event["time"], None, event["host"], code, event["signal"], "script", summary, script.log)
        )
        return self._stop()

    def _on_setup_failed(self, event: dict[str, Any]) -> list[Order]:
        summary = f"launch.setup failed with code {event['code']} on {event['host']}"
        self.failures.append(Failure(event["time"], None, event["host"], 3, None, "setup", summary, event["log"]))
        return self._stop()

    def _on_idle(self, event: dict[str, Any]) -> list[Order]:
        self.hosts_busy.discard(event["host"])
        return []

    def _fail_rank(self, when: float, rank: int, code: int, number: int | None, summary: str) -> list[Order]:
        record = self.ranks[rank]
        log = f"{self.plan.run_dir}/rank_{rank}/log.txt"
        cause = "signal" if number else "exception" if rank in self.errors else "exit"
        self.failures.append(Failure(when, rank, record.host, code, number, cause, summary, log))
        return self._stop()

    def _stop(self) -> list[Order]:
        if self.stopping:
            return []
        self.stopping = True
        return [Order("stop", self.plan.grace)]

    def _all_ended(self) -> bool:
        return all(record.ended for record in self.ranks.values())
