"""Executes a plan on connected hosts: makes attempts, judges how they ended, keeps the record."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mslaunch.documents.schema import SCHEMA_VERSION, RunStatus
from mslaunch.errors import ExitCode, MslaunchError, limit_of, signal_code
from mslaunch.launcher.attempt.attempt import TICK, Attempt, Observer
from mslaunch.launcher.attempt.decisions import Failure
from mslaunch.launcher.attempt.file_transfer import FileTransfer
from mslaunch.launcher.attempt.run_state import RunState
from mslaunch.launcher.connect import Cluster, Site
from mslaunch.plan.model import Plan
from mslaunch.ranges import format_ranges
from mslaunch.run import record
from mslaunch.run.disk_usage import measure_within
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import why
from mslaunch.signals import ASKING, SUSPEND, Signals, SignalSource
from mslaunch.transports.base import Transport
from mslaunch.transports.streams import close_all, pings

if TYPE_CHECKING:
    from mslaunch.launcher.pipeline import Launch
    from mslaunch.launcher.restarts import NextAttempt


class Interrupted(Exception):
    """A signal has asked for the end while hosts were waited for."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Replaced:
    """The next attempt, and the hosts that it runs on."""

    plan: Plan
    cluster: Cluster


def replace_hosts(site: Site, attempt: Attempt, lost: set[str]) -> Replaced | str:
    """Wait for hosts in place of those that were lost; say why the job cannot go on where that fails."""
    plan, cluster = attempt.plan, attempt.cluster
    left = tuple(host for host in plan.hosts if host.name not in lost)
    gone = tuple(host for host in plan.hosts if host.name in lost)
    attempt.run_state.notes.append(f"waiting for a host in place of {', '.join(sorted(lost))}")
    attempt.flush_notes()
    try:
        channels, hosts = cluster.transport.replace_hosts(left, gone, lambda seconds: _wait(attempt, seconds))
    except MslaunchError as error:
        return str(error)
    names = {host.name for host in left}
    kept = [one for one in cluster.channels if one.is_open and names.issuperset(one.hosts)]
    together = [*kept, *channels]
    try:
        again, checked = site.rejoin(together, hosts, plan.attempt + 1)
    except MslaunchError as error:
        close_all(channels)
        return str(error)
    return Replaced(again, Cluster(cluster.transport, together).checked(checked))


def _wait(attempt: Attempt, seconds: float) -> None:
    """Wait a moment, or raise where a signal asks for the end."""
    poll = select.poll()
    poll.register(attempt.signals.fileno(), select.POLLIN)
    poll.poll(seconds * 1000)
    for number in attempt.signals.read():
        if number == SUSPEND:
            attempt.suspend()
        elif number not in ASKING:
            raise Interrupted(number)


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


MOST_NOTES = 50
MEASURE_SECONDS = 1.0


def execute(
    launch: Launch, cluster: Cluster, observe: Observer, signals: SignalSource | None = None
) -> record.RunRecord:
    """Run a job to its end on connected hosts, with as many attempts as it is allowed, and return its record."""
    plan, resumed = launch.plan, launch.site.resumed
    queued = record.queued(plan, time.time(), in_process=signals is not None)
    now = replace(queued, state="running", attempts=resumed.attempts if resumed else ())
    with nullcontext(signals) if signals else Signals() as source, EventLog(launch.folder.events) as events:
        execution = _Execution(launch, cluster, observe, source, events, now)
        try:
            with pings(execution.channels, min(plan.limits.host_lost_after, plan.limits.launcher_lost_after)):
                execution.run()
        except BaseException as error:
            execution.fail(error)
            raise
        finally:
            execution.cluster.close()
            execution.metrics.close()
            if execution.lost:
                cluster.transport.clean_up(plan.run_dir)
            execution.finish()
            finish(cluster.transport, execution.now)
    return execution.now


def finish(transport: Transport, ended: record.RunRecord) -> None:
    """Tell the hosts how the run ended, with the one rank that its verdict names."""
    blamed = ended.verdict.rank if ended.verdict else None
    ranks = tuple(rank for rank in ended.ranks if rank.rank == blamed)
    code = 1 if ended.exit_code is None else ended.exit_code
    transport.finish(code, replace(ended, ranks=ranks, outputs=()).to_dict())


class _Execution:
    """A job on its way: the plan of the present attempt, and the record so far."""

    def __init__(
        self,
        launch: Launch,
        cluster: Cluster,
        observe: Observer,
        signals: SignalSource,
        events: EventLog,
        now: record.RunRecord,
    ) -> None:
        self.plan = launch.plan
        self.site = launch.site
        self.folder = launch.folder
        self.environment = launch.environment
        self.observe = observe
        self.cluster = cluster
        self.channels = list(cluster.channels)
        """The channels of the present attempt, one list for as long as the run lasts."""
        self.signals = signals
        self.events = events
        self.now = now
        self.metrics = MetricsWriter(launch.folder.metrics)
        self.transfer = FileTransfer(cluster, launch.folder, launch.plan.run_dir)
        self.began = time.monotonic()
        self.lost = False
        """Whether an agent was lost, in any attempt."""
        self.attempt: Attempt | None = None
        """The last one."""

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return round(time.monotonic() - self.began, 3)

    def run(self) -> None:
        """Make attempts until there is to be no further one."""
        _save(self.folder, self.now)
        while self._attempt():
            self.now = begun_again(self.now, self.plan)

    def _attempt(self) -> bool:
        """Make one attempt; return whether there is another plan to carry out."""
        attempt = Attempt(self.plan, self.cluster, self.transfer, self.signals, self.observe, self._write, self.began)
        self.attempt = attempt
        with closing(attempt):
            attempt.on_change = self._save_progress
            attempt.keep = self.metrics.write
            run_state = attempt.run(self.environment)
            self.lost = self.lost or bool(run_state.hosts.lost)
            self.now = conclude(self.now, run_state, self.folder, self.seconds)
            if attempt.collection_ended_by is not None:
                fails = self.now.state == "failed" and self.plan.restarts.limit
                self._end(attempt, "a signal has asked for the end" if fails else "")
                return False
            try:
                again = self._prepare_next(attempt)
            except Interrupted as interrupted:
                again = "a signal has asked for the end"
                self.now = replace(self.now, exit_code=signal_code(interrupted.number))
            if isinstance(again, str):
                self._end(attempt, again)
                return False
            self.now = replace(self.now, attempts=(*self.now.attempts, again.summary))
            announce_restart(again, attempt)
            _save(self.folder, replace(self.now, state="running", ended=None, exit_code=None, verdict=None))
            if number := wait_before_restart(again, attempt):
                self.now = replace(self.now, state="stopped", exit_code=signal_code(number), verdict=None)
                self._end(attempt, "")
                return False
            self.plan = again.plan
            return True

    def _prepare_next(self, attempt: Attempt) -> NextAttempt | str:
        """Prepare the next attempt, or say why there is none; an empty text where nobody expects one."""
        if self.now.state != "failed" or self.plan.restarts.limit == 0:
            return ""
        from mslaunch.launcher.restarts import RestartTools, prepare_next

        tools = RestartTools(attempt.free_port)
        if self.site.cluster is not None:
            tools = replace(tools, replan=self.site.replan)
            if self.site.transport.replaces_hosts:
                tools = replace(tools, replace_hosts=partial(self._replace_hosts, attempt))
        return prepare_next(self.plan, self.now, self.folder, attempt.run_state.hosts.lost, tools)

    def _replace_hosts(self, attempt: Attempt, lost: set[str]) -> Plan | str:
        """Plan the next attempt with hosts in place of those that are lost, and connect to them."""
        replaced = replace_hosts(self.site, attempt, lost)
        if isinstance(replaced, str):
            return replaced
        self.cluster = replaced.cluster
        self.channels[:] = replaced.cluster.channels
        self.transfer.use(replaced.cluster, lost)
        return replaced.plan

    def fail(self, error: BaseException) -> None:
        """Put into the record that the launcher itself has failed."""
        limit = limit_of(error)
        if self.attempt is not None:
            self.now = replace(self.now, ranks=self.attempt.run_state.ranks.in_order())
        ended = self.now.end("failed", record.iso(time.time()), limit.exit_code if limit else 1, self.now.verdict)
        self.now = replace(ended, seconds=self.seconds)

    def finish(self) -> None:
        """Keep how the run ended, then run its hooks; their failures become notes."""
        self.now = replace(self.now, bytes=measure_within(self.folder.path, MEASURE_SECONDS))
        notes = _save(self.folder, self.now)
        if hooks := self.site.hooks:
            from mslaunch.launcher.hooks import run_hooks

            notes += run_hooks(hooks, self.folder, self.now, self.environment, self.signals)
        if notes:
            self._tell(notes)
            _save(self.folder, self.now)

    def _tell(self, notes: list[str]) -> None:
        if self.attempt is not None:
            self.attempt.run_state.notes += notes
            self.attempt.flush_notes()

    def _write(self, event: Mapping[str, Any]) -> None:
        """Record an event; notes are kept in run.json too, the last ones."""
        if event["ev"] == "note":
            self.now = replace(self.now, notes=(*self.now.notes, event["text"])[-MOST_NOTES:])
        self.events.write(event)

    def _save_progress(self, run_state: RunState) -> None:
        """Let `mslaunch status` see how the ranks stand."""
        _save(self.folder, replace(self.now, ranks=run_state.ranks.in_order(), warnings=run_state.warnings))

    def _end(self, attempt: Attempt, why: str) -> None:
        attempt.collect_logs(tidy=True)
        attempt.tick()
        if why:
            attempt.run_state.notes.append(f"not started again: {why}")
            attempt.flush_notes()
        if self.plan.report:
            _save(self.folder, self.now)
            attempt.run_state.notes.append(write_final_report(self.folder))
            attempt.flush_notes()


def begun_again(now: record.RunRecord, plan: Plan) -> record.RunRecord:
    """The record at the start of a further attempt, which may have fewer ranks."""
    now = replace(now, state="running", world_size=plan.world_size)
    return replace(now, ended=None, exit_code=None, verdict=None, warnings=(), seconds=None)


def _save(folder: RunFolder, now: record.RunRecord) -> list[str]:
    """Write run.json, and say in a note if that was not possible: a full disk must not end a job."""
    try:
        record.save(folder, now)
    except OSError as error:
        return [f"{folder.record} could not be written: {why(error)}"]
    return []


def announce_restart(again: NextAttempt, attempt: Attempt) -> None:
    """Tell and record that there is to be another attempt."""
    attempt.run_state.notes.append(again.note)
    restart = {"ev": "restart", "attempt": again.plan.attempt, "time": attempt.clock.wall()}
    attempt.notify(restart)
    attempt.write(restart)


def wait_before_restart(again: NextAttempt, attempt: Attempt) -> int | None:
    """Wait before the next attempt; return the signal that ended the wait, if one did."""
    clock = attempt.clock
    poll = select.poll()
    poll.register(attempt.signals.fileno(), select.POLLIN)
    until = clock.monotonic() + again.pause
    while (left := until - clock.monotonic()) > 0:
        poll.poll(min(left, TICK) * 1000)
        for number in attempt.signals.read():
            if number == SUSPEND:
                attempt.suspend()
            elif number not in ASKING:
                return number
        attempt.notify({"ev": "waiting", "seconds": left})
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


class EventLog:
    """events.jsonl: everything that happened but the ranks' own lines. A full disk loses events, never the job."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO | None = None
        with suppress(OSError):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._file = os.fdopen(opened, "a", encoding="utf-8", buffering=1)
            if path.stat().st_size == 0:
                self.write({"ev": "schema", "schema_version": SCHEMA_VERSION})

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def write(self, event: Mapping[str, Any]) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.write(json.dumps(event) + "\n")
