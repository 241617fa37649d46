"""The second stage: the transport is chosen, and the hosts of a job are reached and checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.errors import HostsNotReady, MslaunchError, RequestError
from mslaunch.hosts import Host
from mslaunch.launcher.check import Checked, Requirements, check_devices, check_hosts
from mslaunch.launcher.facts import Elsewhere, find_devices, find_python, gather, job_variables, new_run_id
from mslaunch.launcher.program import FoundProgram, find_program
from mslaunch.launcher.read import CARRIED, Hooks, ReadJob, Request, read
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Facts, HostFacts, Plan, Reach, read_numa
from mslaunch.plan.spec import JobSpec, agree_on_workers, local_host
from mslaunch.run.paths import RunFolder
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.shared.visible_devices import DEVICE_FILES
from mslaunch.transports import registry
from mslaunch.transports.base import Access, Channel, JobContext, JobQueue, Transport, ignore
from mslaunch.transports.streams import close_all

if TYPE_CHECKING:
    from mslaunch.launcher.restarts import ResumedRun

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Agents that are ready for orders."""

    transport: Transport
    channels: Sequence[Channel]
    remote: frozenset[str] = frozenset()
    """Hosts that do not see this machine's run folder: code is sent there, and logs are collected."""
    skew: Mapping[str, float] = field(default_factory=dict)
    """How far the clock of each host is ahead of this machine's, in seconds."""
    clock_errors: Mapping[str, float] = field(default_factory=dict)
    """By how many seconds each of these may be wrong."""

    def checked(self, checked: Checked) -> Cluster:
        """Return the cluster with what its hosts have told about their folders and clocks."""
        reports = checked.reports.items()
        remote = frozenset(name for name, report in reports if not report.shared)
        skew = {name: report.skew for name, report in reports}
        clock_errors = {name: report.clock_error for name, report in reports}
        return replace(self, remote=remote, skew=skew, clock_errors=clock_errors)

    def close(self) -> None:
        """End all agents, and whatever they still run."""
        for channel in self.channels:
            channel.send({"to": "*", "do": "bye"})
        close_all(self.channels)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a job runs: its transport, its hosts and what is known of them. It plans the job for other hosts too."""

    job: ReadJob
    """What was asked, as this transport and these hosts understand it."""
    transport: Transport
    program: FoundProgram
    hosts: tuple[Host, ...]
    facts: Facts
    notes: tuple[str, ...] = ()
    is_imagined: bool = False
    """A machine that has everything, for plans that are carried out elsewhere."""
    cluster: Cluster | None = None
    """The connected hosts, where they had to be asked."""
    queue: JobQueue | None = None
    """Where the job is submitted: it is not for this process to run."""
    resumed: ResumedRun | None = None
    """The run that a queue starts now, or again, and that was there before."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of secrets that were typed, not taken from the environment: they are in no file."""
    hooks: Hooks = field(default_factory=Hooks)
    """What to do when the run has ended."""

    def open(self) -> Cluster:
        """Return the connected hosts; where there was nothing to ask, their agents start now."""
        if self.cluster is not None:
            return self.cluster
        return Cluster(self.transport, self.transport.open(self.hosts, Access(sys.executable)).channels)

    def reach(self, hosts: tuple[Host, ...]) -> Reach:
        env = self.transport.environment(self.job.spec.method, hosts)
        return Reach(self.transport.name, not self.transport.shares_environment, env)

    def replan(self, hosts: tuple[Host, ...], attempt: int, port: int) -> Plan:
        """Plan the same job for the hosts that are left."""
        return self._plan_again(self.facts, hosts, attempt, port)

    def rejoin(self, channels: Sequence[Channel], hosts: tuple[Host, ...], attempt: int) -> tuple[Plan, Checked]:
        """Check hosts of which some are new, and plan the same job for all of them."""
        needed = requirements(self.job.spec, self.program.file)
        checked = check_hosts(channels, hosts, needed, self.transport.device_variables)
        if checked.problems:
            raise HostsNotReady(checked.problems)
        hosts, facts = _place_and_gather(self.job, self.transport, self.program, checked)
        return self._plan_again(facts, hosts, attempt, facts.port), checked

    def _plan_again(self, facts: Facts, hosts: tuple[Host, ...], attempt: int, port: int) -> Plan:
        ranks = sum(len(host.devices) for host in hosts)
        spec = self.job.spec
        spec = replace(spec, config=replace(spec.config, values={**spec.config.values, "device_num": ranks}))
        facts = replace(facts, port=port)
        return make_plan(spec, hosts, facts, attempt, self.reach(hosts))


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job and the transport that takes it."""

    job: ReadJob
    transport: Transport
    context: JobContext
    must_submit: bool
    """The job goes to a queue that this process is not a job of."""


def choose(job: ReadJob, say: Say = ignore) -> Chosen:
    """Choose the transport of a job, and adapt the job's settings to it; `say` gets which hosts it waits for."""
    context = JobContext(job.spec, job.named, os.environ)
    transport = registry.choose(context, say)
    spec = transport.adapt(job.spec)
    must_submit = transport.queue is not None and transport.queue.current_job(os.environ) is None
    return Chosen(replace(job, spec=spec), transport, replace(context, spec=spec), must_submit)


def connect(chosen: Chosen, cleanup: ExitStack) -> Site:
    """Reach and check the hosts of a job where that is needed; `cleanup` lets them go again."""
    launch, secrets = chosen.job.spec.launch, chosen.job.spec.secrets
    webhook = launch.webhook
    if "MSLAUNCH_RUN_DIR" not in os.environ:  # a queue's job has the URL with its secrets, and so have its ranks
        webhook = os.environ.get(f"{RANKS_ONLY}{CARRIED}") or webhook
    hooks = Hooks(launch.on_end, webhook, str(Path.cwd()))
    if chosen.must_submit:
        # The values that go with a queue's job and are in no file: variables of the ranks, and the webhook's URL.
        here: Mapping[str, str] = {} if chosen.transport.shares_environment else os.environ
        secrets = {name: here.get(name) if value is None else value for name, value in secrets.items()}
        secrets[CARRIED] = webhook
        site = survey(chosen)
    elif chosen.transport.needs_check:
        site = _connect_hosts(chosen, hooks, cleanup)
    else:
        site = _look_here(chosen, imagined=False)
    values = {name: value for name, value in secrets.items() if value is not None}
    return replace(site, secrets=values, hooks=hooks)


def survey(chosen: Chosen, imagined: bool = False) -> Site:
    """Describe where a job would run without contacting any host; `imagined` takes a machine that has everything."""
    spec = chosen.job.spec
    if chosen.transport.needs_check and (chosen.job.named or not imagined):
        return _assume_hosts(chosen)
    for name in ("nodes", "nnodes") if imagined else ():
        if getattr(spec.launch, name) not in (None, 1, (1, 1)):
            raise RequestError(
                f'{spec.sources[name]}: scripts for several nodes need their names. Give --hosts "n1:8,n2:8".'
            )
    return _look_here(chosen, imagined)


def _look_here(chosen: Chosen, imagined: bool) -> Site:
    """Look at this machine, or take one like it that has everything."""
    job, spec = chosen.job, chosen.job.spec
    devices = find_devices(spec.config.values.get("device_target"), job_variables(spec))
    if job.named:
        spec = replace(spec, launch=replace(spec.launch, devices=job.named[0].devices))
        job = replace(job, spec=spec)
    workers = agree_on_workers(spec, devices.numbers)
    if imagined:
        host = local_host(spec, workers, (), "CPU")
    else:
        host = local_host(spec, workers, devices.numbers, devices.target, devices.limit)
    program = find_program(spec, job.config_path)
    facts = gather(job, program, devices.target, Elsewhere() if imagined else None)
    notes = chosen.transport.notes(replace(chosen.context, spec=spec))
    if devices.limit and not imagined:
        notes = (devices.limit, *notes)
    return Site(job, chosen.transport, program, (host,), facts, notes, is_imagined=imagined)


def _assume_hosts(chosen: Chosen) -> Site:
    """Take the hosts as they are described, since nobody asks them."""
    job, spec, transport = chosen.job, chosen.job.spec, chosen.transport
    hosts = transport.planned_hosts(chosen.context)
    if transport.queue is not None:
        spec = replace(spec, default_workers=sum(len(host.devices) for host in hosts))
        job = replace(job, spec=spec)
    _check_request(spec, hosts, transport)
    python = find_python(spec)
    assumed = {
        host.name: HostFacts(host.python or python, _assumed_cores(spec, host), is_assumed=True) for host in hosts
    }
    program = find_program(spec, job.config_path)
    target = spec.config.values.get("device_target") or "CPU"
    facts = gather(job, program, target, Elsewhere(assumed, spec.launch.master_port))
    notes = transport.notes(replace(chosen.context, spec=spec))
    return Site(job, transport, program, hosts, facts, notes, queue=transport.queue)


def _assumed_cores(spec: JobSpec, host: Host) -> tuple[int, ...]:
    """The cores that a host is taken to have until it tells: one for each rank, and those that the job names."""
    named = (core for cores in (spec.launch.core_map or {}).values() for core in cores)
    return tuple(sorted({*range(len(host.devices)), *named}))


def _connect_hosts(chosen: Chosen, hooks: Hooks, cleanup: ExitStack) -> Site:
    """Connect to the hosts, check them, and gather what planning has to know of them."""
    transport, spec = chosen.transport, chosen.job.spec
    spec = spec.with_run_id(spec.launch.run_id or new_run_id())
    job = replace(chosen.job, spec=spec)
    program = find_program(spec, job.config_path)
    needed = requirements(spec, program.file)
    from mslaunch.launcher.restarts import find_run

    resumed = find_run(RunFolder(Path(needed.run_dir)), transport, os.environ)
    context = replace(chosen.context, spec=spec)
    if resumed and resumed.before:
        context = replace(context, earlier_hosts=tuple(host.name for host in resumed.before.hosts))
    cleanup.push(partial(_report_failure, transport, resumed, hooks))
    hosts = transport.hosts(context)
    _check_request(spec, hosts, transport)
    cluster, checked = open_cluster(spec, transport, hosts, needed)
    cleanup.callback(cluster.close)
    problems = checked.problems
    if job.checkpoint is not None:
        unshared = "does not share this folder, and infer's checkpoints lie in it. Launch from a shared one."
        problems += [f"{name}: {unshared}" for name in sorted(cluster.remote)]
    if problems:
        raise HostsNotReady(problems)
    hosts, facts = _place_and_gather(job, transport, program, checked)
    _check_request(spec, hosts, transport)
    notes = (*transport.notes(context), *checked.notes)
    return Site(job, transport, program, hosts, facts, notes, cluster=cluster, resumed=resumed)


def _report_failure(
    transport: Transport,
    resumed: ResumedRun | None,
    hooks: Hooks,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: object,
) -> None:
    """Tell the hosts, and the record of a run that a queue started, why a launch came to nothing."""
    del kind, traceback
    if isinstance(error, MslaunchError):
        if resumed:
            failed = resumed.refuse(error)
            if hooks:
                from mslaunch.launcher.hooks import run_hooks

                run_hooks(hooks, resumed.folder, failed, os.environ, None)
        transport.finish(error.exit_code, None, str(error))
    elif error is not None:
        transport.finish(1, None, "the launcher was ended before the run began")


def open_cluster(
    spec: JobSpec, transport: Transport, hosts: tuple[Host, ...], needed: Requirements
) -> tuple[Cluster, Checked]:
    """Start an agent on every host and check them all. The caller must look at `problems` before using the cluster."""
    python = spec.launch.python or sys.executable
    hosts = tuple(replace(host, python=host.python or python) for host in hosts)
    access = Access(python, spec.launch.accept_new_host_keys, spec.launch.connect_timeout)
    opened = transport.open(hosts, access)
    cluster = Cluster(transport, opened.channels)
    try:
        if opened.problems:
            raise HostsNotReady(list(opened.problems))
        checked = check_hosts(opened.channels, opened.hosts, needed, transport.device_variables, transport.tell)
    except BaseException:
        cluster.close()
        raise
    return cluster.checked(checked), checked


def _place_and_gather(
    job: ReadJob, transport: Transport, program: FoundProgram, checked: Checked
) -> tuple[tuple[Host, ...], Facts]:
    """Give the hosts their devices, and put together what planning has to know of them."""
    spec = job.spec
    target = spec.config.values.get("device_target") or _target_of(checked)
    hosts = tuple(report.host for report in checked.reports.values())
    reported = {name: report.facts for name, report in checked.reports.items()}
    placed = transport.place(JobContext(spec, job.named, os.environ), hosts, reported, target)
    if placed != hosts:  # devices that were not known when the hosts were checked
        check_devices(placed, checked, target, spec.launch.share_devices)
    host_facts = {
        name: HostFacts(facts["python"], tuple(facts["cores"]), read_numa(facts["numa"]))
        for name, facts in reported.items()
    }
    return placed, gather(job, program, target, Elsewhere(host_facts, checked.port))


def _target_of(checked: Checked) -> str:
    devices: Mapping[str, Any] = next(iter(checked.reports.values())).facts["devices"]
    return next((target for target in DEVICE_FILES if devices.get(target)), "CPU")


def _check_request(spec: JobSpec, hosts: tuple[Host, ...], transport: Transport) -> None:
    """Refuse what no other hosts could do, before any of them is contacted."""
    if spec.method.reaches_hosts and len({host.python for host in hosts}) > 1:
        raise RequestError(
            f"{spec.sources['method']}: {spec.method.name} starts the same Python everywhere. Name one launch.python."
        )
    if spec.launch.devices is not None:
        raise RequestError(f"{spec.sources['devices']}: {transport.devices_advice}")
    if all(host.devices for host in hosts):
        agree_on_workers(spec, (), hosts)


def requirements(spec: JobSpec, script: Path | None) -> Requirements:
    """What a job needs of its hosts."""
    target = spec.config.values.get("device_target")
    return Requirements(
        run_dir=str(Path(spec.launch.runs_dir).resolve() / (spec.launch.run_id or "check")),
        script=str(script or ""),
        target=target,
        needs_mindspore=target not in (None, "None") or spec.method.needs_mindspore,
        port=spec.launch.master_port,
        numa=spec.launch.needs_numa,
        share_devices=spec.launch.share_devices,
        device_variables=job_variables(spec),
    )


def check_ready(request: Request, script: str, say: Say) -> Checked:
    """Ask the hosts of a job, or this machine, whether they are ready; nothing starts."""
    job = read(request)
    chosen = choose(job, say)
    spec, transport = chosen.job.spec, chosen.transport
    if chosen.must_submit and transport.queue is not None:
        raise RequestError(
            f"{spec.sources['transport']}: {transport.queue.label} chooses the hosts when a job starts. Run the check "
            f"inside one of its jobs."
        )
    hosts = transport.hosts(chosen.context)
    cluster, checked = open_cluster(spec, transport, hosts, requirements(spec, Path(script) if script else None))
    cluster.close()
    transport.finish(0, None, "the launcher has checked this node, and starts nothing")
    return checked
