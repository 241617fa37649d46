"""Executes a plan on connected hosts: makes attempts, judges how they ended, keeps the record."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mslaunch.documents.schema import SCHEMA_VERSION, RunStatus
from mslaunch.errors import ExitCode, MslaunchError, limit_of, signal_code
from mslaunch.launcher.attempt.attempt import Attempt
from mslaunch.launcher.attempt.connections import TICK, Connections
from mslaunch.launcher.attempt.decisions import Failure
from mslaunch.launcher.attempt.file_transfer import FileTransfer
from mslaunch.launcher.attempt.journal import Journal, Observer
from mslaunch.launcher.attempt.notices import Restart, RestartPause, SchemaLine
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.connect import Cluster
from mslaunch.plan.model import Plan
from mslaunch.ranges import format_ranges
from mslaunch.run import record
from mslaunch.run.disk_usage import measure
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import why
from mslaunch.signals import Signals, SignalSource
from mslaunch.transports.streams import close_all, pings

if TYPE_CHECKING:
    from mslaunch.launcher.pipeline import Launch
    from mslaunch.launcher.restarts import NextAttempt

MEASURE_SECONDS = 1.0
ASKED_TO_END = "a signal has asked for the end"


class Interrupted(Exception):
    """A signal, whose number this holds, has asked for the end while hosts were waited for."""


def execute(
    launch: Launch, cluster: Cluster, observe: Observer, signals: SignalSource | None = None
) -> record.RunRecord:
    """Run a job to its end on connected hosts, with as many attempts as it is allowed, and return its record."""
    plan, resumed = launch.plan, launch.site.resumed
    queued = record.queued(plan, time.time(), in_process=signals is not None)
    now = replace(queued, state="running", attempts=resumed.attempts if resumed else ())
    least_silence = min(plan.limits.host_lost_after, plan.limits.launcher_lost_after)
    with nullcontext(signals) if signals else Signals() as source, open_events(launch.folder.events) as write:
        execution = Execution(launch, cluster, observe, source, write)
        execution.groups.append(RankGroup(execution, plan, now))
        try:
            with pings(execution.connections.channels, least_silence):
                execution.run()
        except BaseException as error:
            execution.fail(error)
            raise
        finally:
            execution.connections.close()
            execution.metrics.close()
            if execution.has_lost_hosts:
                cluster.transport.clean_up(plan.run_dir)
            execution.finish()
        final = execution.record
        source.settle(1 if final.exit_code is None else final.exit_code)
    return final


class Execution:
    """A run on its way: its hosts, its files, and the groups of ranks that it consists of."""

    def __init__(
        self,
        launch: Launch,
        cluster: Cluster,
        observe: Observer,
        signals: SignalSource,
        write: Callable[[Mapping[str, Any]], None],
    ) -> None:
        plan = launch.plan
        self.launch = launch
        self.signals = signals
        self.metrics = MetricsWriter(launch.folder.metrics)
        self.journal = Journal(observe, write, self.metrics.write, self.save_progress)
        self.connections = Connections(cluster, signals, plan.limits.host_lost_after)
        self.transfer = FileTransfer(cluster, launch.folder, plan.run_dir)
        self.groups: list[RankGroup] = []
        self.began = time.monotonic()
        self.has_lost_hosts = False
        """Whether an agent was lost, in any attempt."""
        self._bytes: int | None = None

    @property
    def record(self) -> record.RunRecord:
        """How the run stands."""
        together = combine([group.now for group in self.groups])
        return replace(together, notes=tuple(self.journal.notes), bytes=self._bytes)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return round(time.monotonic() - self.began, 3)

    def run(self) -> None:
        """Run all groups to their ends."""
        self.save()
        for group in self.groups:
            group.run()
        if self.launch.plan.report:
            self.save()
            self.groups[-1].report([write_final_report(self.launch.folder)])

    def save(self) -> list[str]:
        """Write run.json, and say in a note if that was not possible: a full disk must not end a job."""
        folder = self.launch.folder
        try:
            record.save(folder, self.record)
        except OSError as error:
            return [f"{folder.record} could not be written: {why(error)}"]
        return []

    def save_progress(self) -> None:
        """Let `mslaunch status` see how the ranks stand."""
        for group in self.groups:
            if group.now.state == "running":
                group.update()
        self.save()

    def fail(self, error: BaseException) -> None:
        """Put into the record that the launcher itself has failed."""
        limit = limit_of(error)
        for group in self.groups:
            group.fail(limit.exit_code if limit else 1)

    def finish(self) -> None:
        """Keep how the run ended, run its hooks, whose failures become notes, and tell the hosts."""
        with suppress(OSError):  # measuring takes too long
            self._bytes = measure(self.launch.folder.path, time.monotonic() + MEASURE_SECONDS)
        notes = self.save()
        if hooks := self.launch.site.hooks:
            from mslaunch.launcher.hooks import run_hooks

            notes += run_hooks(hooks, self.launch.folder, self.record, self.launch.environment, self.signals)
        if notes:
            self.groups[-1].report(notes)
            self.save()
        ended = self.record
        blamed = ended.verdict.rank if ended.verdict else None
        ranks = tuple(rank for rank in ended.ranks if rank.rank == blamed)  # hosts show no other
        code = 1 if ended.exit_code is None else ended.exit_code
        self.connections.cluster.transport.finish(code, replace(ended, ranks=ranks, outputs=()).to_dict())


class RankGroup:
    """Ranks with a scheduler, a port and restarts of their own: the plan of the present attempt, and the record."""

    def __init__(self, run: Execution, plan: Plan, now: record.RunRecord) -> None:
        self.run_of = run
        self.plan = plan
        self.now = now
        """The record of the run, as far as it is about this group."""
        self.attempt: Attempt | None = None
        """The last one."""

    def run(self) -> None:
        """Make attempts until there is to be no further one."""
        run = self.run_of
        while True:
            attempt = Attempt(self.plan, run.connections, run.transfer, run.journal, run.began)
            self.attempt = attempt
            run_state = attempt.run(run.launch.environment)
            run.has_lost_hosts = run.has_lost_hosts or bool(run_state.hosts.lost)
            self.now = conclude(self.now, run_state, run.launch.folder, run.seconds)
            again: NextAttempt | str = ""  # or why there is none
            if self.now.state == "failed" and self.plan.restarts.limit:
                again = self._prepare_next(attempt)
            if not isinstance(again, str):
                again = self._wait_for(again, attempt)
            if isinstance(again, str):
                attempt.collect_logs(tidy=True)
                attempt.tick()
                if again:
                    self.report([f"not started again: {again}"])
                return
            self.plan = again.plan
            self.now = replace(self.now, world_size=self.plan.world_size, warnings=(), seconds=None)

    def update(self) -> None:
        """Take into the record how the ranks of the attempt stand."""
        if self.attempt is not None:
            run_state = self.attempt.run_state
            self.now = replace(self.now, ranks=run_state.ranks.in_order(), warnings=run_state.warnings)

    def fail(self, exit_code: int) -> None:
        """Put into the record that the launcher itself has failed."""
        self.update()
        ended = self.now.end("failed", record.iso(time.time()), exit_code, self.now.verdict)
        self.now = replace(ended, seconds=self.run_of.seconds)

    def report(self, notes: Sequence[str]) -> None:
        """Record and show what a person should know; nobody is there before the first attempt."""
        if self.attempt is not None:
            self.attempt.run_state.notes += notes
            self.run_of.journal.flush_notes(self.attempt.run_state)

    def _prepare_next(self, attempt: Attempt) -> NextAttempt | str:
        """Prepare the next attempt, or say why there is none."""
        if attempt.collection_ended_by is not None:
            return ASKED_TO_END
        from mslaunch.launcher.restarts import RestartTools, prepare_next

        site, tools = self.run_of.launch.site, RestartTools(self._free_port)
        if site.cluster is not None:
            tools = replace(tools, replan=site.replan)
            if site.transport.replaces_hosts:
                tools = replace(tools, replace_hosts=self._replace_hosts)
        try:
            return prepare_next(self.plan, self.now, self.run_of.launch.folder, attempt.run_state.hosts.lost, tools)
        except Interrupted as interrupted:
            self.now = replace(self.now, exit_code=signal_code(interrupted.args[0]))
            return ASKED_TO_END

    def _free_port(self, host: str) -> int:
        """Find a port for the scheduler of a further attempt, on the host that it will run on."""
        from mslaunch.launcher.check import find_port
        from mslaunch.launcher.facts import choose_port

        connections = self.run_of.connections
        if not connections.cluster.transport.needs_check:
            return choose_port(None)
        return find_port([channel for channel in connections.channels if channel.is_open], host)

    def _replace_hosts(self, lost: set[str]) -> Plan | str:
        """Wait for hosts in place of those that are lost, and plan the next attempt with them, or say why not."""
        connections, site = self.run_of.connections, self.run_of.launch.site
        cluster = connections.cluster
        left = tuple(host for host in self.plan.hosts if host.name not in lost)
        gone = tuple(host for host in self.plan.hosts if host.name in lost)
        self.report([f"waiting for a host in place of {', '.join(sorted(lost))}"])
        try:
            channels, hosts = cluster.transport.replace_hosts(left, gone, self._wait)
        except MslaunchError as error:
            return str(error)
        names = {host.name for host in left}
        together = [channel for channel in cluster.channels if channel.is_open and names.issuperset(channel.hosts)]
        together += channels
        try:
            again, checked = site.rejoin(together, hosts, self.plan.attempt + 1)
        except MslaunchError as error:
            close_all(channels)
            return str(error)
        replaced = Cluster(cluster.transport, together).checked(checked)
        connections.use(replaced)
        self.run_of.transfer.use(replaced, lost)
        return again

    def _wait(self, seconds: float) -> None:
        """Wait a moment, or raise where a signal asks for the end."""
        if number := self.run_of.connections.wait_for_signal(seconds):
            raise Interrupted(number)

    def _wait_for(self, again: NextAttempt, attempt: Attempt) -> NextAttempt | str:
        """Wait until the next attempt starts; return an empty text where a signal ends that."""
        concluded = replace(self.now, attempts=(*self.now.attempts, again.summary))
        self.now = replace(concluded, state="running", ended=None, exit_code=None, verdict=None)
        announce_restart(again, attempt)
        self.run_of.save()
        if number := wait_before_restart(again, attempt):
            self.now = replace(concluded, state="stopped", exit_code=signal_code(number), verdict=None)
            return ""
        return again


_COUNTS: tuple[RunStatus, ...] = ("running", "failed", "stopped", "succeeded")


def combine(groups: Sequence[record.RunRecord]) -> record.RunRecord:
    """The record of a run from those of its groups: it goes on while one does, and fails with the first verdict."""
    decisive = min(groups, key=lambda group: (_COUNTS.index(group.state), group.ended or ""))
    return replace(
        decisive,
        world_size=sum(group.world_size for group in groups),
        ranks=tuple(rank for group in groups for rank in group.ranks),
        attempts=tuple(attempt for group in groups for attempt in group.attempts),
        outputs=tuple(output for group in groups for output in group.outputs),
        warnings=tuple(warning for group in groups for warning in group.warnings),
    )


def write_final_report(folder: RunFolder) -> str:
    """Write the report of a run that has ended and say where it is; a failure costs the report, never the run."""
    try:
        from mslaunch.run.run import Run
        from mslaunch.ui.page import write_report

        return f"report: {write_report(Run(folder))}"
    except MslaunchError as error:
        return str(error)
    except Exception as error:
        return f"report.html could not be written: {type(error).__name__}: {error}"


def announce_restart(again: NextAttempt, attempt: Attempt) -> None:
    """Report and record that there is to be another attempt."""
    attempt.run_state.notes.append(again.note)
    restart = Restart(again.plan.attempt, attempt.clock.wall())
    attempt.journal.notify(restart, attempt.run_state)
    attempt.journal.write_notice(restart)


def wait_before_restart(again: NextAttempt, attempt: Attempt) -> int | None:
    """Wait before the next attempt; return the signal that ended the wait, if one did."""
    until = attempt.clock.monotonic() + again.pause
    while (left := until - attempt.clock.monotonic()) > 0:
        if number := attempt.connections.wait_for_signal(min(left, TICK)):
            return number
        attempt.journal.notify(RestartPause(left), attempt.run_state)
    return None


def conclude(now: record.RunRecord, run_state: RunState, folder: RunFolder, seconds: float) -> record.RunRecord:
    """Put an attempt's outcome into the record; `seconds` is what the run has taken."""
    unended = sorted(run_state.ranks.records.keys() - run_state.ranks.ended_well())
    if run_state.ending.interrupt is None and not run_state.ending.failures and unended:
        host, ranks = run_state.plan.hosts[0].name, format_ranges(unended)
        summary = f"the agent on {host} ended before rank {ranks} had"
        run_state.ending.fail(Failure(time.time(), None, host, ExitCode.LOST, None, "host lost", summary))
    verdict = None
    if run_state.ending.interrupt is None and run_state.ending.failures:
        from mslaunch.launcher.explain import make_verdict

        verdict = make_verdict(run_state, folder)
    if run_state.ending.interrupt is not None:
        state: RunStatus = "stopped"
        exit_code = signal_code(run_state.ending.interrupt)
    elif verdict is not None:
        state, exit_code = "failed", verdict.exit_code or run_state.ending.failures[0].exit_code
    else:
        state, exit_code = "succeeded", 0
    now = replace(now, ranks=run_state.ranks.in_order()).end(state, record.iso(time.time()), exit_code, verdict)
    return replace(
        now,
        outputs=record.sum_outputs(run_state.outputs),
        warnings=run_state.warnings,
        seconds=seconds,
    )


@contextmanager
def open_events(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield what writes a line of events.jsonl. A full disk loses events, never the job."""
    file: TextIO | None = None

    def write(event: Mapping[str, Any]) -> None:
        if file is not None:
            with suppress(OSError):
                file.write(json.dumps(event) + "\n")

    with suppress(OSError):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        file = os.fdopen(opened, "a", encoding="utf-8", buffering=1)
        if path.stat().st_size == 0:
            write(SchemaLine(SCHEMA_VERSION).record())
    try:
        yield write
    finally:
        if file is not None:
            with suppress(OSError):
                file.close()
