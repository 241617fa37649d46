"""The state of one attempt: handles the agents' events, decides what to do next and who failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from mslaunch.diagnose import stacks
from mslaunch.diagnose.verdict import signal_name
from mslaunch.errors import ExitCode, signal_code, start_advice
from mslaunch.launcher.attempt import decisions
from mslaunch.launcher.attempt.decisions import Failure, Order
from mslaunch.launcher.attempt.joining import Joining
from mslaunch.launcher.attempt.last_metrics import NOT_FINITE, Numbers
from mslaunch.launcher.attempt.stack_request import Purpose, StackRequest
from mslaunch.metrics.alerts import Alert
from mslaunch.plan.model import Plan
from mslaunch.run.record import RankRecord, WarningRecord, iso
from mslaunch.shared import layout, messages
from mslaunch.shared.other_launchers import find_launcher
from mslaunch.signals import STACKS, WARNING
from mslaunch.text import command_words, describe_held, named_ranks
from mslaunch.worker.exit_recorder import CRASHES

JOINED_EVERY = 0.2  # agents need not hear of each of 10,000 ranks that is through init()


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
        self._agents_are_stopped = agents_are_stopped
        self.began = began
        self.ranks = {int(w.rank or 0): RankRecord(int(w.rank or 0), w.host, w.device_id) for w in plan.workers}
        self._running = dict.fromkeys(self.ranks)
        self.raised: set[int] = set()
        self.done: set[int] = set()
        """Ranks whose script has ended well; what may still go wrong is how Python and MindSpore are taken apart."""
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.interrupt: int | None = None
        self._told_by_agents = False
        self.stopping = False
        self.hosts_busy = {host.name for host in plan.hosts}
        self.hosts_lost: set[str] = set()
        self.joining = Joining()
        self.numbers = Numbers(plan)
        self._imported = False
        self._joined_sent: float | None = None
        self.last_output: float | None = None
        self.pulse = 0.0
        self.silent: dict[int, float] = {}
        self.idle: dict[int, float] = {}
        """Seconds that a rank has neither printed nor computed, as its agent saw it after another rank had ended."""
        self.first_end: tuple[float, int] | None = None
        self.last_start = began
        self.stacks = StackRequest()
        self.last_looks: list[tuple[stacks.Group, ...]] = []
        """Where all ranks stood once the time of the job was up, one look after another."""
        self._finished = False
        self.outputs: list[messages.OutputRow] = []
        self._nested: tuple[WarningRecord, ...] = ()

    @property
    def warnings(self) -> tuple[WarningRecord, ...]:
        """What makes the result of a job doubtful, however its ranks have ended."""
        losses = tuple(WarningRecord(NOT_FINITE, text) for text in self.numbers.describe_losses())
        return (*self._nested, *losses)

    @property
    def rank_records(self) -> tuple[RankRecord, ...]:
        """How the ranks stand, in order."""
        return tuple(self.ranks[rank] for rank in sorted(self.ranks))

    @property
    def over(self) -> bool:
        return not self.hosts_busy

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended, in order."""
        return list(self._running)

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
        return self.interrupted(number)

    def interrupted(self, number: int) -> list[Order]:
        """A signal asks for the end: the first waits for the ranks, the second does not.

        A job that is ending because it failed stays failed, and one whose ranks have all ended well has succeeded:
        there a signal only hurries it on.
        """
        again = (self.interrupt is not None and not self._told_by_agents) or bool(self.failures)
        self._told_by_agents = False
        if not self.failures and not self._finished:
            self.interrupt = self.interrupt or number
        self.stopping = True
        return [Order("stop", 0.0 if again else self.plan.limits.grace)]

    def _stopped_with_agents(self, number: int) -> list[Order]:
        """A batch system signals agents and launcher alike when a job is to end, and agents may notice first."""
        if self.stopping or self._finished:
            return []
        self.interrupt, self.stopping, self._told_by_agents = number, True, True
        return [Order("stop", self.plan.limits.grace)]

    def fail(self, failure: Failure) -> list[Order]:
        """Something went wrong; the first time, everything is stopped."""
        self.failures.append(failure)
        if self.stopping or self._finished:  # the agents end by themselves, once they have sent their data
            return []
        self.stopping = True
        return [Order("stop", self.plan.limits.grace)]

    def host_lost(self, hosts: tuple[str, ...], now: float, why: str = "") -> list[Order]:
        """A stream ended before its agents had said that nothing is left."""
        orders: list[Order] = []
        for host in hosts:
            if host in self.hosts_busy:
                self.hosts_busy.discard(host)
                self.hosts_lost.add(host)
                summary = why or f"the agent on {host} is gone"
                orders += self.fail(Failure(now, None, host, ExitCode.LOST, None, "host lost", summary))
        return orders

    def ask_for_stacks(self, purpose: Purpose = "question") -> list[Order]:
        """Have every agent take the stacks of its ranks; what for is remembered."""
        self.stacks.ask([host.name for host in self.plan.hosts if host.name not in self.hosts_lost], purpose)
        return [Order("stacks")]

    def _on_started(self, event: messages.Started, now: float) -> list[Order]:
        if event["role"] == "worker" and event["rank"] is not None:
            rank = self.ranks[event["rank"]]
            self.ranks[rank.rank] = replace(rank, pid=event["pid"], started=iso(event["time"]))
            self.last_output = max(self.last_output or now, now)
            self.last_start = now
        return []

    def _on_start_failed(self, event: messages.StartFailed, now: float) -> list[Order]:
        del now
        summary = f"{event['role']} could not be started on {event['host']}: {event['why']}{start_advice(event['why'])}"
        return self.fail(
            Failure(event["time"], event["rank"], event["host"], ExitCode.NOT_READY, None, "start", summary)
        )

    def _on_files_failed(self, event: messages.FilesFailed, now: float) -> list[Order]:
        del now
        summary = f"the run's files could not be laid out on {event['host']}: {event['why']}"
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.NOT_READY, None, "setup", summary))

    def _on_devices_held(self, event: messages.DevicesHeld, now: float) -> list[Order]:
        del now
        held = {int(device): who for device, who in event["held"].items()}
        summary = f"{event['host']}: {'; '.join(describe_held(held))}"
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.NOT_READY, None, "devices", summary))

    def _on_joining(self, event: messages.RankNote, now: float) -> list[Order]:
        self.joining.enter(event["rank"], now)
        return []

    def _on_joined(self, event: messages.RankNote, now: float) -> list[Order]:
        self.joining.leave(event["rank"])
        if len(self.plan.hosts) == 1 or (self._joined_sent is not None and now - self._joined_sent < JOINED_EVERY):
            return []
        self._joined_sent = now
        return [Order("joined")]

    def _on_import(self, event: messages.RankNote, now: float) -> list[Order]:
        del event, now
        first, self._imported = not self._imported, True
        return [Order("scheduler")] if first and len(self.plan.hosts) > 1 else []

    def _on_imported(self, event: messages.RankNote, now: float) -> list[Order]:
        del now
        self.joining.imported.add(event["rank"])
        return []

    def _on_pulse(self, event: messages.Pulse, now: float) -> list[Order]:
        if self.last_output is not None:
            self.last_output = max(self.last_output, now - event["quiet"])
            self.pulse = now
        return []

    def _on_activity(self, event: messages.Activity, now: float) -> list[Order]:
        del now
        self.silent.update({int(rank): seconds for rank, seconds in event["silent"].items()})
        self.idle.update({int(rank): seconds for rank, seconds in event["idle"].items()})
        return []

    def _on_metrics(self, event: messages.MetricsEvent, now: float) -> list[Order]:
        return self.report_alerts(self.numbers.receive(event, now), event["time"])

    def _on_nested_launcher(self, event: messages.NestedLauncherEvent, now: float) -> list[Order]:
        """Report the first rank that starts a launcher; the others most likely do the same."""
        del now
        if self._nested:
            return []
        instead = ""
        launcher = find_launcher(event["command"].split())
        if launcher is not None:
            instead = f" Type {command_words(*launcher.instead(len(self.ranks)))} instead."
        text = (
            f"rank {event['rank']} on {event['host']} starts ranks itself: {event['command']}. Each of the "
            f"{len(self.ranks)} ranks may run a job of its own.{instead}"
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
                orders += self._rank_failed(wall, rank, 1, None, alert.kind, summary)
            else:
                self.notes.append(alert.text)
        return orders

    def _on_done(self, event: messages.RankNote, now: float) -> list[Order]:
        del now
        self.done.add(event["rank"])
        return []

    def _on_error(self, event: messages.RankError, now: float) -> list[Order]:
        """A rank has raised: it will end, though MindSpore's teardown may take it a second."""
        del now
        rank = event["rank"]
        self.raised.add(rank)
        return self._rank_failed(event["time"], rank, 1, None, "exception", event["message"])

    def _on_exited(self, event: messages.Exited, now: float) -> list[Order]:
        if event["role"] == "worker":
            return self._rank_exited(event, now)
        if self.stopping or self._finished or not self._running:
            return []
        if event["role"] == "script":
            return self._script_exited(event)
        return self.fail(decisions.of_scheduler(event, self.plan.run_dir)) if event["code"] != 0 else []

    def _rank_exited(self, event: messages.Exited, now: float) -> list[Order]:
        rank, when = cast(int, event["rank"]), event["time"]
        code, number, note = decisions.counted(event, rank in self.raised and self.stopping, rank in self.done)
        if note:
            self.notes.append(note)
        self.joining.end(rank, code, now)
        self.numbers.rank_ended(rank)
        self._running.pop(rank, None)
        not_asked = not event.get("asked", self.stopping) and self.interrupt is None
        by_itself = not_asked or number in CRASHES
        stopped = self.stopping and not by_itself and rank not in self.raised
        self.ranks[rank] = replace(
            self.ranks[rank], exit_code=code, signal=number, ended=iso(when), stopped=stopped and code != 0
        )
        self._add_reason(event)
        if self.stopping and not by_itself:
            return []
        if code != 0:
            how = f"was killed by {signal_name(number)}" if number else f"exited with code {code}"
            cause = "signal" if number else "exit"
            orders = self._rank_failed(when, rank, signal_code(number) if number else code or 1, number, cause, how)
            self._add_reason(event)
            return orders
        if not self._running:
            return self._finish(when, event["host"])
        self.first_end = self.first_end or (now, rank)
        return []

    def _add_reason(self, event: messages.Exited) -> None:
        """Add to a rank's failures what its agent found out when it had ended."""
        names = ("out_of_memory", "child", "child_signal", "kernel")
        why = {name: event.get(name) for name in names if event.get(name)}
        if why:
            of_rank = [at for at, failure in enumerate(self.failures) if failure.rank == event["rank"]]
            for at in of_rank:
                self.failures[at] = replace(self.failures[at], **cast(dict[str, Any], why))

    def _finish(self, when: float, host: str) -> list[Order]:
        """All ranks have ended well; whether they have worked together is looked at now."""
        self._finished = True
        alone = self.joining.describe_alone(len(self.ranks))
        if alone and self.plan.require_init:
            self.failures.append(Failure(when, None, host, 1, None, "no init", f"{alone} (launch.require_init)"))
        elif alone:
            self.notes.append(alone)
        return [Order("finish")]

    def _script_exited(self, event: messages.Exited) -> list[Order]:
        scripts = [process for process in self.plan.processes if process.role == "script"]
        own = [rank for rank in self.running if len(scripts) == 1 or self.ranks[rank].host == event["host"]]
        if set(own) <= self.done:
            return []  # its own ranks have done their work; those of other hosts are not its business
        script = next(process for process in scripts if process.host == event["host"])
        return self.fail(decisions.of_script(event, script, own))

    def _on_setup_failed(self, event: messages.SetupFailed, now: float) -> list[Order]:
        del now
        how = f"with code {event['code']}" if event["code"] is not None else "by a signal"
        summary = f"launch.setup failed {how} on {event['host']}"
        log = f"{self.plan.run_dir}/{layout.SETUP_LOG}"  # not what a host says: it would have any file of ours read
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.NOT_READY, None, "setup", summary, log))

    def _on_sync_failed(self, event: messages.SyncFailed, now: float) -> list[Order]:
        del now
        summary = f"launch.sync failed on {event['host']}: {event['why']}"
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.NOT_READY, None, "setup", summary))

    def _on_stacks(self, event: messages.Stacks, now: float) -> list[Order]:
        """Group the stacks once all hosts have sent theirs; a hang is then explained, and ended where that is asked."""
        groups = self.stacks.receive(event)
        if groups is None:
            return []
        purpose, self.stacks.purpose = self.stacks.purpose, "question"
        words = "; ".join(group.words() for group in groups) or "no rank is running"
        if purpose == "timeout":
            self.last_looks.append(groups)
            return []
        if purpose == "question":
            self.notes.append(f"stacks: {words}")
            return []
        self.last_output = now
        quiet = f"no output from any rank for {self.plan.limits.stall_timeout:g} s; {words}"
        if self.plan.limits.on_stall == "report":
            self.notes.append(quiet)
            return []
        return self.fail_by_stacks(groups, event["time"], "stalled", quiet)

    def fail_by_stacks(self, groups: Sequence[stacks.Group], when: float, cause: str, summary: str) -> list[Order]:
        """Blame the rank that does not stand where most do, else the one that ended while all others wait for it."""
        odd = stacks.odd_ranks(groups)
        ended = [rank for rank, record in self.ranks.items() if record.exit_code == 0]
        if len(odd) == 1:
            return self._rank_failed(when, odd[0], ExitCode.TIME_IS_UP, None, cause, summary)
        if self.first_end is not None and stacks.all_wait(groups):
            summary = f"{named_ranks(ended)} ended with code 0, and {named_ranks(self.running)} still waited: {summary}"
            return self._rank_failed(when, self.first_end[1], ExitCode.TIME_IS_UP, None, "exit skew", summary)
        if ended:
            summary = f"{summary}; {named_ranks(ended)} had ended with code 0"
        return self.fail(Failure(when, None, self.plan.hosts[0].name, ExitCode.TIME_IS_UP, None, cause, summary))

    def _on_abandoned(self, event: messages.Abandoned, now: float) -> list[Order]:
        del now
        if self._agents_are_stopped and event["signal"]:
            return self._stopped_with_agents(event["signal"])
        summary = f"the agent on {event['host']} gave up: {event['why']}"
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.LOST, None, "host lost", summary))

    def _on_stuck(self, event: messages.Stuck, now: float) -> list[Order]:
        del now
        summary = f"cannot be ended on {event['host']}: process {', '.join(event['processes'])}; it hangs in the kernel"
        self.notes.append(summary)
        return self.fail(Failure(event["time"], None, event["host"], ExitCode.LOST, None, "stuck", summary))

    def _on_outputs(self, event: messages.Outputs, now: float) -> list[Order]:
        del now
        self.outputs += event["outputs"]
        return []

    def _on_note(self, event: messages.AgentNote, now: float) -> list[Order]:
        del now
        self.notes.append(f"{event['host']}: {event['text']}")
        return []

    def _on_idle(self, event: messages.Idle, now: float) -> list[Order]:
        del now
        self.hosts_busy.discard(event["host"])
        return []

    def _rank_failed(
        self, when: float, rank: int, code: int, number: int | None, cause: str, summary: str
    ) -> list[Order]:
        host = self.ranks[rank].host
        return self.fail(Failure(when, rank, host, code, number, cause, summary, self.log_of(rank)))

    def log_of(self, rank: int) -> str:
        return f"{self.plan.run_dir}/{layout.rank_folder(rank)}/{layout.LOG}"


Handler = Callable[[RunState, Any, float], list[Order]]
HANDLERS: dict[str, Handler] = {
    "started": RunState._on_started,
    "start-failed": RunState._on_start_failed,
    "files-failed": RunState._on_files_failed,
    "setup-failed": RunState._on_setup_failed,
    "sync-failed": RunState._on_sync_failed,
    "devices-held": RunState._on_devices_held,
    "import": RunState._on_import,
    "imported": RunState._on_imported,
    "joining": RunState._on_joining,
    "joined": RunState._on_joined,
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
