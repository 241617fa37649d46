"""From a request to a plan: reads what it names, connects to hosts and checks them where that is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.errors import HostsNotReady, MslaunchError, RequestError
from mslaunch.hosts import Host
from mslaunch.launch.check import Checked, Requirements, check_devices, check_hosts
from mslaunch.launch.cluster import Cluster, connect
from mslaunch.launch.facts import (
    Elsewhere,
    check_held_devices,
    find_devices,
    find_python,
    gather,
    job_variables,
    new_run_id,
)
from mslaunch.launch.hooks import CARRIED, Hooks, run_hooks
from mslaunch.launch.job_command import own_command
from mslaunch.launch.program import FoundProgram
from mslaunch.launch.replacement import Rejoin
from mslaunch.launch.request import ReadJob, Request, read_job
from mslaunch.launch.restarts import Replan
from mslaunch.launch.resume import ResumedRun, find_run
from mslaunch.plan.make import HERE, make_plan
from mslaunch.plan.model import Facts, HostFacts, Plan, Reach, read_numa
from mslaunch.plan.spec import JobSpec, agree_on_workers, local_host
from mslaunch.runs.paths import RunFolder
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.settings.launch import LaunchSettings
from mslaunch.shared.visible_devices import DEVICE_FILES
from mslaunch.transports import registry
from mslaunch.transports.base import Access, Channel, JobQueue, Transport


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, and the hosts that are connected for it, if they had to be asked."""

    plan: Plan
    transport: Transport
    cluster: Cluster | None = None
    replan: Replan | None = None
    """Plans the same job for fewer hosts."""
    rejoin: Rejoin | None = None
    """Checks hosts of which some are new, and plans the same job for them."""
    resumed: ResumedRun | None = None
    """The run that a queue starts now, or anew, and that was there before."""
    queue: JobQueue | None = None
    """Where the plan is to be submitted: it is not for this process to carry out."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of secrets that were given, not taken from the environment: they are in no file."""
    hooks: Hooks = field(default_factory=Hooks)
    """What is to be done when the run has ended."""


def plan_job(request: Request, elsewhere: bool = False) -> Plan:
    """Plan without contacting the hosts; nothing is written or started."""
    return _with_files(request, _plan(request, elsewhere))


def _with_files(request: Request, plan: Plan) -> Plan:
    return replace(plan, files=(*plan.files, *request.files)) if request.files else plan


def _plan(request: Request, elsewhere: bool) -> Plan:
    job = read_job(request)
    job, transport = _choose_transport(job)
    if transport.needs_check and (job.named or not elsewhere):
        return _plan_unseen(job, transport)
    if elsewhere:
        _check_one_node(job.spec)
    return _plan_here(job, transport, elsewhere)


def _check_one_node(spec: JobSpec) -> None:
    """Refuse scripts for several nodes of which nobody has said which they are."""
    for name in ("nodes", "nnodes"):
        if getattr(spec.launch, name) not in (None, 1, (1, 1)):
            raise RequestError(
                f'{spec.source(name)}: scripts for several nodes need their names. Give --hosts "n1:8,n2:8".'
            )


def _choose_transport(job: ReadJob) -> tuple[ReadJob, Transport]:
    """Return the transport of a job, and the job with its settings as that one understands them."""
    transport = registry.choose(job.spec, job.named, os.environ)
    return replace(job, spec=transport.adapt(job.spec)), transport


def membership(job: ReadJob, tell: Callable[[str], None]) -> Any:
    """How this process takes part in a job that another one launches; None where it launches itself."""
    job, transport = _choose_transport(job)
    transport.tell = tell
    return transport.membership(job.spec, os.environ)


def prepare_job(request: Request, job: ReadJob | None = None, tell: Callable[[str], None] | None = None) -> Prepared:
    """Read, check and plan; where hosts have to be asked, connect to them and check them first.

    `job` is the request once it has been read; `tell` is told what hosts are waited for.
    """
    prepared = _prepare(job or read_job(request), tell)
    return replace(prepared, plan=_with_files(request, prepared.plan))


def _prepare(job: ReadJob, tell: Callable[[str], None] | None) -> Prepared:
    job, transport = _choose_transport(job)
    given = {name: value for name, value in job.spec.secrets.items() if value is not None}
    hooks = _hooks(job.spec)
    if not transport.needs_check:
        plan = _plan_here(job, transport)
        check_held_devices(plan)
        return Prepared(plan, transport, secrets=given, hooks=hooks)
    queue = transport.queue
    if queue is not None and queue.current_job(os.environ) is None:
        secrets = _sent_secrets(job.spec, transport, hooks)
        return Prepared(_plan_unseen(job, transport), transport, queue=queue, secrets=secrets)
    job = replace(job, spec=job.spec.with_run_id(job.spec.launch.run_id or new_run_id()))
    resumed = find_run(RunFolder(Path(requirements(job.spec, _file(job.program)).run_dir)), transport, os.environ)
    transport.tell = tell or transport.tell
    transport.expect([host.name for host in resumed.before.hosts] if resumed and resumed.before else [])
    try:
        return replace(_prepare_connected(job, transport, resumed), secrets=given, hooks=hooks)
    except MslaunchError as error:
        if resumed:
            failed = resumed.refuse(error)
            if hooks:
                run_hooks(hooks, resumed.folder, failed, os.environ, None)
        transport.finish(error.exit_code, None, str(error))
        raise
    except BaseException:
        transport.finish(1, None, "the launcher was ended before the run began")
        raise


def _sent_secrets(spec: JobSpec, transport: Transport, hooks: Hooks) -> dict[str, str]:
    """The values that go with a queue's job and are in no file: variables of the ranks, and the webhook's URL."""
    here: Mapping[str, str] = {} if transport.shares_environment else os.environ
    values = {name: here.get(name) if value is None else value for name, value in spec.secrets.items()}
    values |= {CARRIED: hooks.webhook}
    return {name: value for name, value in values.items() if value is not None}


def _hooks(spec: JobSpec) -> Hooks:
    """What is to be done at the end; a queue's job has the URL with its secrets, and so have its ranks."""
    is_rank = "MSLAUNCH_RUN_DIR" in os.environ
    carried = None if is_rank else os.environ.get(f"{RANKS_ONLY}{CARRIED}")
    return Hooks(spec.launch.on_end, carried or spec.launch.webhook, str(Path.cwd()))


def _plan_here(job: ReadJob, transport: Transport, elsewhere: bool = False) -> Plan:
    """Plan for this machine, or for one like it that has everything."""
    spec = job.spec
    found = find_devices(spec.config.values.get("device_target"), job_variables(spec))
    if job.named:
        spec = replace(spec, settings=replace(spec.settings, values=_with_devices(spec, job.named[0])))
    workers = agree_on_workers(spec, found.numbers)
    if elsewhere:
        host = local_host(spec, workers, (), "CPU")
    else:
        host = local_host(spec, workers, found.numbers, found.target, found.limit)
    facts = gather(spec, job.program, found.target, job.rank_table, Elsewhere() if elsewhere else None)
    spec = replace(job, spec=spec).with_checkpoints(workers, facts.run_dir)
    reach = HERE if elsewhere else _reach(transport, spec, (host,))
    reach = replace(reach, passes_stdin=job.request.offers_stdin and not elsewhere)
    plan = make_plan(spec, (host,), facts, reach=reach)
    hidden = (found.limit,) if found.limit and not elsewhere else ()
    return replace(plan, notes=(*plan.notes, *hidden, *transport.notes(spec, os.environ)))


def _with_devices(spec: JobSpec, host: Host) -> LaunchSettings:
    return spec.launch.model_copy(update={"devices": host.devices})


def _plan_unseen(job: ReadJob, transport: Transport) -> Plan:
    """Plan for hosts that are not contacted, with what is submitted where a queue runs the job."""
    spec = job.spec
    hosts = transport.planned_hosts(spec, job.named)
    if transport.queue is not None:
        spec = replace(spec, default_workers=sum(len(host.devices) for host in hosts))
    python = find_python(spec)
    known = {host.name: HostFacts(host.python or python, _assumed_cores(spec, host), is_assumed=True) for host in hosts}
    target = spec.config.values.get("device_target") or "CPU"
    facts = gather(spec, job.program, target, job.rank_table, Elsewhere(known, spec.launch.master_port))
    plan = _plan_elsewhere(replace(job, spec=spec), hosts, facts, transport)
    plan = replace(plan, notes=(*plan.notes, *transport.notes(spec, os.environ)))
    if transport.queue is None:
        return plan
    files = transport.queue.files(spec, plan, own_command(job))
    return replace(plan, files=(*plan.files, *files))


def _assumed_cores(spec: JobSpec, host: Host) -> tuple[int, ...]:
    """The cores that a host is taken to have until it tells: one for each rank, and those that the job names."""
    named = (core for cores in (spec.launch.core_map or {}).values() for core in cores)
    return tuple(sorted({*range(len(host.devices)), *named}))


def _file(found: FoundProgram) -> str:
    return str(found.file) if found.file else ""


def _prepare_connected(job: ReadJob, transport: Transport, resumed: ResumedRun | None) -> Prepared:
    """Connect to the hosts, check them, and plan with what they answer."""
    spec, found = job.spec, job.program
    hosts = transport.hosts(spec, job.named, os.environ)
    _check_request(spec, hosts, transport)
    python = spec.launch.python or sys.executable
    hosts = tuple(replace(host, python=host.python or python) for host in hosts)
    needed = requirements(spec, _file(found))
    cluster, checked = connect(transport, hosts, _access(spec.launch, python), needed)
    try:
        _check_ready(job.request, cluster, checked)
        hosts, facts = _place_and_gather(job, transport, checked)
        plan = _plan_elsewhere(job, hosts, facts, transport, resumed.attempt if resumed else 0)
        plan = resumed.resume(plan) if resumed else plan
    except BaseException:
        cluster.close()
        raise
    plan = replace(plan, notes=(*plan.notes, *transport.notes(spec, os.environ), *checked.notes))
    replan = partial(_replan, spec, facts, transport)
    rejoin = partial(_plan_again, job, transport, needed) if transport.replaces_hosts else None
    return Prepared(plan, transport, cluster, replan, rejoin, resumed)


def _place_and_gather(job: ReadJob, transport: Transport, checked: Checked) -> tuple[tuple[Host, ...], Facts]:
    """Give the hosts their devices, and put together what planning has to know of them."""
    spec = job.spec
    target = spec.config.values.get("device_target") or _target_of(checked)
    hosts = _placed(spec, transport, checked, target)
    known = {
        name: HostFacts(report.facts["python"], tuple(report.facts["cores"]), read_numa(report.facts["numa"]))
        for name, report in checked.reports.items()
    }
    return hosts, gather(spec, job.program, target, job.rank_table, Elsewhere(known, checked.port))


def _plan_again(
    job: ReadJob,
    transport: Transport,
    needed: Requirements,
    channels: Sequence[Channel],
    hosts: tuple[Host, ...],
    attempt: int,
) -> tuple[Plan, Checked]:
    """Check hosts of which some are new, and plan the job for all of them."""
    checked = check_hosts(channels, hosts, needed, transport.device_variables)
    if checked.problems:
        raise HostsNotReady(checked.problems)
    hosts, facts = _place_and_gather(job, transport, checked)
    return _replan(job.spec, facts, transport, hosts, attempt, facts.port), checked


def _placed(spec: JobSpec, transport: Transport, checked: Checked, target: str) -> tuple[Host, ...]:
    hosts = tuple(report.host for report in checked.reports.values())
    facts = {name: report.facts for name, report in checked.reports.items()}
    placed = transport.place(spec, hosts, facts, os.environ, target)
    if placed != hosts:  # devices that were not known when the hosts were checked
        check_devices(placed, checked, target, spec.launch.share_devices)
    return placed


def _check_request(spec: JobSpec, hosts: tuple[Host, ...], transport: Transport) -> None:
    """Refuse what no other hosts could do, before any of them is contacted."""
    if spec.method.reaches_hosts and len({host.python for host in hosts}) > 1:
        raise RequestError(
            f"{spec.source('method')}: {spec.method.name} starts the same Python everywhere. Name one launch.python."
        )
    if spec.launch.devices is not None:
        raise RequestError(f"{spec.source('devices')}: {transport.devices_advice}")
    if all(host.devices for host in hosts):
        agree_on_workers(spec, (), hosts)


def _check_ready(request: Request, cluster: Cluster, checked: Checked) -> None:
    problems = checked.problems
    if request.choose_checkpoints is not None:
        unshared = "does not share this folder, and infer's checkpoints lie in it. Launch from a shared one."
        problems += [f"{name}: {unshared}" for name in sorted(cluster.remote)]
    if problems:
        raise HostsNotReady(problems)


def _plan_elsewhere(
    job: ReadJob, hosts: tuple[Host, ...], facts: Facts, transport: Transport, attempt: int = 0
) -> Plan:
    _check_request(job.spec, hosts, transport)
    workers = agree_on_workers(job.spec, (), hosts)
    spec = job.with_checkpoints(workers, facts.run_dir)
    return make_plan(spec, hosts, facts, attempt, _reach(transport, spec, hosts))


def _replan(
    spec: JobSpec,
    facts: Facts,
    transport: Transport,
    left: tuple[Host, ...],
    attempt: int,
    port: int,
) -> Plan:
    """Plan the same job for the hosts that are left."""
    ranks = sum(len(host.devices) for host in left)
    config = replace(spec.config, values={**spec.config.values, "device_num": ranks})
    spec = replace(spec, config=config)
    return make_plan(spec, left, replace(facts, port=port), attempt, _reach(transport, spec, left))


def _reach(transport: Transport, spec: JobSpec, hosts: tuple[Host, ...]) -> Reach:
    env = transport.environment(spec.method, hosts)
    return Reach(transport.name, not transport.shares_environment, env)


def requirements(spec: JobSpec, script: str) -> Requirements:
    """What a job needs of its hosts."""
    target = spec.config.values.get("device_target")
    return Requirements(
        run_dir=str(Path(spec.launch.runs_dir).resolve() / (spec.launch.run_id or "check")),
        script=script,
        target=target,
        needs_mindspore=target not in (None, "None") or spec.method.needs_mindspore,
        port=spec.launch.master_port,
        numa=spec.launch.needs_numa,
        share_devices=spec.launch.share_devices,
        device_variables=job_variables(spec),
    )


def _target_of(checked: Checked) -> str:
    first: Mapping[str, Any] = next(iter(checked.reports.values())).facts["devices"]
    return next((target for target in DEVICE_FILES if first.get(target)), "CPU")


def _access(launch: LaunchSettings, python: str) -> Access:
    return Access(python, launch.accept_new_host_keys, launch.connect_timeout)


def check_only(request: Request, script: str, tell: Callable[[str], None]) -> Checked:
    """Ask the hosts of a job whether they are ready; nothing is started. `tell` is told which hosts are waited for."""
    job = read_job(request)
    job, transport = _choose_transport(job)
    transport.tell = tell
    queue = transport.queue
    if queue is not None and queue.current_job(os.environ) is None:
        raise RequestError(
            f"{job.spec.source('transport')}: {queue.label} chooses the hosts when a job starts. Run the check "
            f"inside one of its jobs."
        )
    python = job.spec.launch.python or sys.executable
    hosts = transport.hosts(job.spec, job.named, os.environ)
    hosts = tuple(replace(host, python=host.python or python) for host in hosts)
    cluster, checked = connect(transport, hosts, _access(job.spec.launch, python), requirements(job.spec, script))
    cluster.close()
    transport.finish(0, None, "the launcher has checked this node, and starts nothing")
    return checked
