"""The state of one attempt: handles the agents' events, decides what to do next and who failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from mslaunch.diagnose import stacks
from mslaunch.diagnose.verdict import signal_name
from mslaunch.errors import ExitCode, signal_code, start_advice
from mslaunch.launcher.attempt.decisions import Ending, Failure, Order
from mslaunch.launcher.attempt.states import (
    NOT_FINITE,
    ActivityTimes,
    HostStates,
    Joining,
    Numbers,
    Purpose,
    RankStates,
    StackRequest,
)
from mslaunch.metrics.alerts import Alert
from mslaunch.plan.model import Plan
from mslaunch.ranges import format_ranges
from mslaunch.run.record import WarningRecord, iso, rank_records
from mslaunch.shared import layout, messages
from mslaunch.shared.other_launchers import find_launcher
from mslaunch.signals import STACKS, WARNING
from mslaunch.text import command_words, describe_held, named_ranks


class RunState:
    """One attempt, from the first event to the last."""

    def __init__(
        self,
        plan: Plan,
        began: float = 0.0,
        agents_are_stopped: bool = False,
        clock_errors: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.clock_errors = clock_errors
        """By how many seconds the times of each host may be wrong."""
        records = {record.rank: record for record in rank_records(plan)}
        names = tuple(host.name for host in plan.hosts)
        self.ranks = RankStates(records, dict.fromkeys(records))
        self.hosts = HostStates(names, set(names))
        self.ending = Ending(plan.limits.grace, agents_are_stopped)
        self.activity = ActivityTimes(began)
        self.joining = Joining(len(names) > 1)
        self.numbers = Numbers(plan)
        self.stacks = StackRequest()
        self.notes: list[str] = []
        self.outputs: list[messages.OutputRow] = []
        self._nested: tuple[WarningRecord, ...] = ()

    @property
    def warnings(self) -> tuple[WarningRecord, ...]:
        """What makes the result of a job doubtful, however its ranks have ended."""
        losses = tuple(WarningRecord(NOT_FINITE, text) for text in self.numbers.describe_losses())
        return (*self._nested, *losses)

    def dispatch(self, event: messages.Message, now: float) -> list[Order]:
        """Handle one event that came at `now`, by a clock that only runs forward; return what has to be done."""
        handler = HANDLERS.get(event["ev"])
        return handler(self, event, now) if handler else []

    def pop_notes(self) -> list[str]:
        """Return what a person should be told by now, each once."""
        notes, self.notes = self.notes, []
        return notes

    def signalled(self, number: int) -> list[Order]:
        """Do what a signal to the launcher asks for."""
        if number == STACKS:
            return self.ask_for_stacks()
        if number == WARNING:
            self.notes.append("time limit close: SIGUSR1 forwarded to the ranks that handle it")
            return [Order("warn")]
        return self.ending.interrupted(number)

    def host_lost(self, hosts: tuple[str, ...], now: float, why: str = "") -> list[Order]:
        """A stream ended before its agents had said that nothing is left."""
        orders: list[Order] = []
        for host in hosts:
            if self.hosts.lose(host):
                summary = why or f"the agent on {host} is gone"
                orders += self.fail_host(host, now, ExitCode.LOST, "host lost", summary)
        return orders

    def ask_for_stacks(self, purpose: Purpose = "question") -> list[Order]:
        """Have every agent take the stacks of its ranks; what for is remembered."""
        self.stacks.ask(set(self.hosts.names) - self.hosts.lost, purpose)
        return [Order("stacks")]

    def _on_started(self, event: messages.Started, now: float) -> list[Order]:
        rank, activity = event["rank"], self.activity
        if event["role"] == "worker" and rank is not None:
            record = self.ranks.records[rank]
            self.ranks.records[rank] = replace(record, pid=event["pid"], started=iso(event["time"]))
            activity.last_output = max(activity.last_output or now, now)
            activity.last_start = now
        return []

    def _on_start_failed(self, event: messages.StartFailed, _now: float) -> list[Order]:
        host, why = event["host"], event["why"]
        summary = f"{event['role']} could not be started on {host}: {why}{start_advice(why)}"
        failure = Failure(event["time"], event["rank"], host, ExitCode.NOT_READY, None, "start", summary)
        return self.ending.fail(failure)

    def _on_files_failed(self, event: messages.HostFailure, _now: float) -> list[Order]:
        summary = f"the run's files could not be laid out on {event['host']}: {event['why']}"
        return self.fail_host(event["host"], event["time"], ExitCode.NOT_READY, "setup", summary)

    def _on_devices_held(self, event: messages.DevicesHeld, _now: float) -> list[Order]:
        held = {int(device): who for device, who in event["held"].items()}
        summary = f"{event['host']}: {'; '.join(describe_held(held))}"
        return self.fail_host(event["host"], event["time"], ExitCode.NOT_READY, "devices", summary)

    def _on_joining(self, event: messages.RankNote, now: float) -> list[Order]:
        return self.joining.receive(event, now)

    def _on_pulse(self, event: messages.Pulse, now: float) -> list[Order]:
        self.activity.receive_pulse(event, now)
        return []

    def _on_activity(self, event: messages.Activity, _now: float) -> list[Order]:
        self.activity.receive(event)
        return []

    def _on_metrics(self, event: messages.MetricsEvent, now: float) -> list[Order]:
        return self.report_alerts(self.numbers.receive(event, now), event["time"])

    def _on_nested_launcher(self, event: messages.NestedLauncherEvent, _now: float) -> list[Order]:
        """Report the first rank that starts a launcher; the others most likely do the same."""
        if self._nested:
            return []
        instead = ""
        launcher = find_launcher(event["command"].split())
        if launcher is not None:
            instead = f" Type {command_words(*launcher.instead(len(self.ranks.records)))} instead."
        text = (
            f"rank {event['rank']} on {event['host']} starts ranks itself: {event['command']}. Each of the "
            f"{len(self.ranks.records)} ranks may run a job of its own.{instead}"
        )
        self._nested = (WarningRecord("nested launcher", text),)
        self.notes.append(text)
        return []

    def report_alerts(self, alerts: list[Alert], wall: float) -> list[Order]:
        """Report what the numbers of the job show; a loss that is not finite ends the job where that is asked."""
        orders: list[Order] = []
        for alert in alerts:
            rank = alert.source.rank
            if alert.kind == NOT_FINITE and rank is not None and self.plan.limits.on_nan == "stop":
                summary = f"{alert.text} (launch.on_nan)"
                orders += self.fail_rank(wall, rank, 1, None, alert.kind, summary)
            else:
                self.notes.append(alert.text)
        return orders

    def _on_done(self, event: messages.RankNote, _now: float) -> list[Order]:
        self.ranks.done.add(event["rank"])
        return []

    def _on_error(self, event: messages.RankError, _now: float) -> list[Order]:
        """A rank has raised: it will end, though MindSpore's teardown may take it a second."""
        self.ranks.raised.add(event["rank"])
        return self.fail_rank(event["time"], event["rank"], 1, None, "exception", event["message"])

    def _on_exited(self, event: messages.Exited, now: float) -> list[Order]:
        if event["role"] == "worker":
            return self._rank_exited(event, now)
        if self.ending.is_decided or not self.ranks.running:
            return []
        if event["role"] == "script":
            return self._script_exited(event)
        if event["code"] == 0:
            return []
        what, log = "MindSpore's scheduler died", f"{self.plan.run_dir}/{layout.SCHEDULER}/{layout.LOG}"
        when, host, number = event["time"], event["host"], event["signal"]
        return self.ending.fail(Failure(when, None, host, ExitCode.LOST, number, "scheduler", what, log))

    def _rank_exited(self, event: messages.Exited, now: float) -> list[Order]:
        rank, when = cast(int, event["rank"]), event["time"]
        code, number, note = self.ranks.read_exit(rank, event, self.ending.stopping)
        if note:
            self.notes.append(note)
        stopped = self.ending.has_stopped(event, number)
        self.ranks.end(rank, code, number, when, stopped)
        self.joining.end(rank, code, now)
        self.numbers.rank_ended(rank)
        orders: list[Order] = []
        if code != 0 and not stopped:
            cause, how, exit_code = "exit", f"exited with code {code}", code or 1
            if number:
                cause, how, exit_code = "signal", f"was killed by {signal_name(number)}", signal_code(number)
            orders = self.fail_rank(when, rank, exit_code, number, cause, how)
        elif not stopped and not self.ranks.running:
            orders = self._finish(when, event["host"])
        elif not stopped:
            self.activity.first_end = self.activity.first_end or (now, rank)
        self.ending.add_reason(event)
        return orders

    def _finish(self, when: float, host: str) -> list[Order]:
        """All ranks have ended well; whether they have worked together is looked at now."""
        alone = self.joining.describe_alone(len(self.ranks.records))
        if alone and self.plan.require_init:
            return self.ending.finish(Failure(when, None, host, 1, None, "no init", f"{alone} (launch.require_init)"))
        if alone:
            self.notes.append(alone)
        return self.ending.finish(None)

    def _script_exited(self, event: messages.Exited) -> list[Order]:
        scripts = [process for process in self.plan.processes if process.role == "script"]
        own = list(self.ranks.running)
        if len(scripts) > 1:
            own = [rank for rank in own if self.ranks.records[rank].host == event["host"]]
        if self.ranks.done.issuperset(own):
            return []  # its own ranks have done their work; those of other hosts are not its business
        host, number, code = event["host"], event["signal"], event["code"] or 1
        if number:
            code = signal_code(number)
        script = next(process for process in scripts if process.host == host)
        name = script.argv[-1].rpartition("/")[2]
        summary = f"{name} ended with code {code} before rank {format_ranges(own)} had"
        return self.ending.fail(Failure(event["time"], None, host, code, number, "script", summary, script.log))

    def _on_setup_failed(self, event: messages.SetupFailed, _now: float) -> list[Order]:
        how = f"with code {event['code']}" if event["code"] is not None else "by a signal"
        summary = f"launch.setup failed {how} on {event['host']}"
        log = f"{self.plan.run_dir}/{layout.SETUP_LOG}"  # not what a host says: it would have any file of ours read
        return self.fail_host(event["host"], event["time"], ExitCode.NOT_READY, "setup", summary, log)

    def _on_sync_failed(self, event: messages.HostFailure, _now: float) -> list[Order]:
        summary = f"launch.sync failed on {event['host']}: {event['why']}"
        return self.fail_host(event["host"], event["time"], ExitCode.NOT_READY, "setup", summary)

    def _on_stacks(self, event: messages.Stacks, now: float) -> list[Order]:
        """Group the stacks once all hosts have sent theirs; a hang is then explained, and ended where that is asked."""
        groups = self.stacks.receive(event)
        if groups is None:
            return []
        purpose, self.stacks.purpose = self.stacks.purpose, "question"
        words = "; ".join(group.words() for group in groups) or "no rank is running"
        if purpose == "timeout":
            self.stacks.last_looks.append(groups)
            return []
        if purpose == "question":
            self.notes.append(f"stacks: {words}")
            return []
        self.activity.last_output = now
        quiet = f"no output from any rank for {self.plan.limits.stall_timeout:g} s; {words}"
        if self.plan.limits.on_stall == "report":
            self.notes.append(quiet)
            return []
        return self.fail_by_stacks(groups, event["time"], "stalled", quiet)

    def fail_by_stacks(self, groups: Sequence[stacks.Group], when: float, cause: str, summary: str) -> list[Order]:
        """Blame the rank that does not stand where most do, else the one that ended while all others wait for it."""
        odd, ended, first_end = stacks.odd_ranks(groups), self.ranks.ended_well(), self.activity.first_end
        if len(odd) == 1:
            return self.fail_rank(when, odd[0], ExitCode.TIME_IS_UP, None, cause, summary)
        if first_end is not None and stacks.all_wait(groups):
            waiting = named_ranks(self.ranks.running)
            summary = f"{named_ranks(ended)} ended with code 0, and {waiting} still waited: {summary}"
            return self.fail_rank(when, first_end[1], ExitCode.TIME_IS_UP, None, "exit skew", summary)
        if ended:
            summary = f"{summary}; {named_ranks(ended)} had ended with code 0"
        return self.fail_host(self.hosts.names[0], when, ExitCode.TIME_IS_UP, cause, summary)

    def _on_abandoned(self, event: messages.Abandoned, _now: float) -> list[Order]:
        if self.ending.agents_are_stopped and event["signal"]:
            return self.ending.interrupted_with_agents(event["signal"])
        summary = f"the agent on {event['host']} gave up: {event['why']}"
        return self.fail_host(event["host"], event["time"], ExitCode.LOST, "host lost", summary)

    def _on_stuck(self, event: messages.Stuck, _now: float) -> list[Order]:
        summary = f"cannot be ended on {event['host']}: process {', '.join(event['processes'])}; it hangs in the kernel"
        self.notes.append(summary)
        return self.fail_host(event["host"], event["time"], ExitCode.LOST, "stuck", summary)

    def _on_outputs(self, event: messages.Outputs, _now: float) -> list[Order]:
        self.outputs += event["outputs"]
        return []

    def _on_note(self, event: messages.AgentNote, _now: float) -> list[Order]:
        self.notes.append(f"{event['host']}: {event['text']}")
        return []

    def _on_idle(self, event: messages.Idle, _now: float) -> list[Order]:
        self.hosts.busy.discard(event["host"])
        return []

    def fail_rank(self, when: float, rank: int, code: int, number: int | None, cause: str, summary: str) -> list[Order]:
        """A rank has failed; everything is stopped."""
        host, log = self.ranks.records[rank].host, f"{self.plan.run_dir}/{layout.rank_folder(rank)}/{layout.LOG}"
        return self.ending.fail(Failure(when, rank, host, code, number, cause, summary, log))

    def fail_host(
        self, host: str, when: float, code: int, cause: str, summary: str, log: str | None = None
    ) -> list[Order]:
        """Something failed for which no rank is to blame; everything is stopped."""
        return self.ending.fail(Failure(when, None, host, code, None, cause, summary, log))


Handler = Callable[[RunState, Any, float], list[Order]]
HANDLERS: dict[str, Handler] = {
    "started": RunState._on_started,
    "start-failed": RunState._on_start_failed,
    "files-failed": RunState._on_files_failed,
    "setup-failed": RunState._on_setup_failed,
    "sync-failed": RunState._on_sync_failed,
    "devices-held": RunState._on_devices_held,
    "import": RunState._on_joining,
    "imported": RunState._on_joining,
    "joining": RunState._on_joining,
    "joined": RunState._on_joining,
    "done": RunState._on_done,
    "error": RunState._on_error,
    "exited": RunState._on_exited,
    "nested-launcher": RunState._on_nested_launcher,
    "pulse": RunState._on_pulse,
    "activity": RunState._on_activity,
    "metrics": RunState._on_metrics,
    "stacks": RunState._on_stacks,
    "abandoned": RunState._on_abandoned,
    "stuck": RunState._on_stuck,
    "outputs": RunState._on_outputs,
    "agent-note": RunState._on_note,
    "idle": RunState._on_idle,
}
"""What an attempt does about each event; the others are for whoever asked for them."""
