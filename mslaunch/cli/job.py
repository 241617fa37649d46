"""From a command line to a plan: the steps that every launching verb takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mslaunch.errors import WRONG_REQUEST, ConfigError, HostsNotReady, MslaunchError, RankTableMissing, RequestError
from mslaunch.launch.adoption import Adopted, adopt
from mslaunch.launch.attempts import Replan
from mslaunch.launch.check import Checked, Wanted
from mslaunch.launch.cluster import Access, Cluster, connect
from mslaunch.launch.facts import Elsewhere, find_devices, find_python, find_script, gather, new_run_id
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.slurm_jobs import in_allocation
from mslaunch.plan.config import Config, override, parse_config, split_assignments
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Checkpoints, Facts, Host, HostFacts, Plan
from mslaunch.plan.settings import LaunchSettings, resolve
from mslaunch.plan.spec import JobSpec, agree_on_workers, choose_transport, local_host, named_hosts
from mslaunch.ranktable.validate import validate
from mslaunch.ranktable.versions import read_table


@dataclass(frozen=True, slots=True)
class Request:
    """A command line, taken apart."""

    config: str | None = None
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    script_args: tuple[str, ...] = ()
    default_script: str = "train.py"
    default_workers: int | None = None
    choose_checkpoints: Callable[[int, str], Checkpoints] | None = None
    """Says which files a job of so many ranks, in this run's folder, is given."""
    verb: str = "train"
    verb_options: tuple[str, ...] = ()
    """What was typed for this verb alone."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan, and the hosts that are connected for it, if they are others than this machine."""

    plan: Plan
    cluster: Cluster | None = None
    replan: Replan | None = None
    """Plans the same job for fewer hosts."""
    adopted: Adopted | None = None
    """The run that Slurm starts now, or anew, and that was there before."""
    submits: bool = False
    """The job is not for us to carry out, but for Slurm."""


def _transport(spec: JobSpec, hosts: tuple[Host, ...]) -> str:
    return choose_transport(spec, hosts, in_allocation(os.environ))


def plan_job(request: Request, elsewhere: bool = False) -> Plan:
    """Read, check and plan; nothing is written, started or connected to."""
    spec, config_path, table = _read_job(request)
    hosts = named_hosts(spec, _hostfile(spec))
    script = find_script(spec, config_path)
    transport = _transport(spec, hosts)
    if transport == "local" or elsewhere:
        return _plan_here(request, spec, table, script, hosts, elsewhere)
    if transport == "slurm":
        return _plan_submission(request, spec, table, script)
    return _plan_unseen(request, spec, table, script, hosts, transport)


def _plan_submission(request: Request, spec: JobSpec, table: str | None, script: Path) -> Plan:
    """Plan for nodes that Slurm has yet to choose."""
    from mslaunch.cli import slurm_job
    from mslaunch.plan.slurm import planned_hosts

    hosts = planned_hosts(spec)
    spec = replace(spec, default_workers=sum(len(host.devices) for host in hosts))
    plan = _plan_unseen(request, spec, table, script, hosts, "slurm")
    return slurm_job.with_script(request, spec, plan, str(script))


def _plan_unseen(
    request: Request, spec: JobSpec, table: str | None, script: Path, hosts: tuple[Host, ...], transport: str
) -> Plan:
    """Plan for hosts that nobody has asked anything."""
    python = find_python(spec)
    known = {host.name: HostFacts(host.python or python, tuple(range(len(host.devices)))) for host in hosts}
    target = spec.config.values.get("device_target") or "CPU"
    facts = gather(spec, script, target, table, Elsewhere(known, spec.launch.master_port))
    return _plan_elsewhere(request, spec, hosts, facts, transport)


def prepare_job(request: Request) -> Prepared:
    """Read, check and plan; where hosts are named, connect to them and check them first."""
    spec, config_path, table = _read_job(request)
    hosts = named_hosts(spec, _hostfile(spec))
    script = find_script(spec, config_path)
    transport = _transport(spec, hosts)
    if transport == "local":
        return Prepared(_plan_here(request, spec, table, script, hosts, elsewhere=False))
    if transport == "ssh":
        return _prepare_elsewhere(request, spec, table, script, hosts, transport)
    if not in_allocation(os.environ):
        return Prepared(_plan_submission(request, spec, table, script), submits=True)
    from mslaunch.launch.slurm import allotted_nodes

    spec = spec.with_run_id(spec.launch.run_id or new_run_id())
    adopted = adopt(RunFolder(Path(wanted_of(spec, str(script)).run_dir)), os.environ)
    try:
        nodes = allotted_nodes(os.environ, spec.launch.nodes)
        return _prepare_elsewhere(request, spec, table, script, nodes, transport, adopted)
    except MslaunchError as error:
        if adopted:
            adopted.refuse(error)
        raise


def _prepare_elsewhere(
    request: Request,
    spec: JobSpec,
    table: str | None,
    script: Path,
    hosts: tuple[Host, ...],
    transport: str,
    adopted: Adopted | None = None,
) -> Prepared:
    """Connect to the hosts, check them, and plan with what they answer."""
    _check_request(spec, hosts, transport)
    python = spec.launch.python or sys.executable
    hosts = tuple(replace(host, python=host.python or python) for host in hosts)
    spec = spec.with_run_id(spec.launch.run_id or new_run_id())
    wanted = wanted_of(spec, str(script))
    cluster, checked = connect(transport, hosts, Access(python, spec.launch.accept_new_host_keys), wanted)
    try:
        _check_ready(request, cluster, checked)
        target = spec.config.values.get("device_target") or _target_of(checked)
        hosts = tuple(report.host for report in checked.reports.values())
        if transport == "slurm":
            from mslaunch.cli import slurm_job

            hosts = slurm_job.placed(spec, checked, target)
        known = {
            name: HostFacts(report.facts["python"], tuple(report.facts["cores"]))
            for name, report in checked.reports.items()
        }
        facts = gather(spec, script, target, table, Elsewhere(known, checked.port))
        plan = _plan_elsewhere(request, spec, hosts, facts, transport, adopted.attempt if adopted else 0)
        plan = adopted.resume(plan) if adopted else plan
    except BaseException:
        cluster.close()
        raise
    plan = replace(plan, notes=(*plan.notes, *checked.notes))
    return Prepared(plan, cluster, partial(_replan, spec, facts, transport), adopted)


def _plan_here(
    request: Request, spec: JobSpec, table: str | None, script: Path, hosts: tuple[Host, ...], elsewhere: bool
) -> Plan:
    target, found = find_devices(spec.config.values.get("device_target"))
    if hosts:
        spec = replace(spec, settings=replace(spec.settings, values=_with_devices(spec, hosts[0])))
    workers = agree_on_workers(spec, found)
    host = local_host(spec, workers, () if elsewhere else found, "CPU" if elsewhere else target)
    facts = gather(spec, script, target, table, Elsewhere() if elsewhere else None)
    return make_plan(_with_checkpoints(request, spec, workers, facts), (host,), facts)


def _check_request(spec: JobSpec, hosts: tuple[Host, ...], transport: str) -> None:
    """Refuse what no other hosts could do, before any of them is troubled."""
    if spec.launch.method == "mpirun" and len({host.python for host in hosts}) > 1:
        raise RequestError(
            f"{spec.source('method')}: mpirun starts the same Python everywhere. Name one launch.python."
        )
    if spec.launch.devices is not None:
        fix = {
            "ssh": 'with hosts, devices stand with each: --hosts "n1:[0-3],n2:8".',
            "slurm": "Slurm gives the devices. Leave it out.",
        }
        raise RequestError(f"{spec.source('devices')}: {fix[transport]}")
    if transport == "ssh":
        agree_on_workers(spec, (), hosts)


def _check_ready(request: Request, cluster: Cluster, checked: Checked) -> None:
    troubles = checked.troubles
    if request.choose_checkpoints is not None:
        unshared = "does not share this folder, and infer's checkpoints lie in it. Launch from a shared one."
        troubles += [f"{name}: {unshared}" for name in sorted(cluster.remote)]
    if troubles:
        raise HostsNotReady(troubles)


def _replan(spec: JobSpec, facts: Facts, transport: str, left: tuple[Host, ...], attempt: int, port: int) -> Plan:
    """Plan the same job for the hosts that are left."""
    ranks = sum(len(host.devices) for host in left)
    config = replace(spec.config, values={**spec.config.values, "device_num": ranks})
    return make_plan(replace(spec, config=config), left, replace(facts, port=port), attempt, transport)


def hosts_of(request: Request) -> tuple[JobSpec, tuple[Host, ...]]:
    """Read which hosts were named, for verbs that need nothing else of a job."""
    spec, _, _ = _read_job(request)
    return spec, named_hosts(spec, _hostfile(spec))


def wanted_of(spec: JobSpec, script: str) -> Wanted:
    """What a job needs of its hosts."""
    target = spec.config.values.get("device_target")
    return Wanted(
        run_dir=str(Path(spec.launch.runs_dir).resolve() / (spec.launch.run_id or "check")),
        script=script,
        target=target,
        needs_mindspore=target not in (None, "None") or spec.launch.method == "msrun",
        port=spec.launch.master_port,
    )


def _plan_elsewhere(
    request: Request, spec: JobSpec, hosts: tuple[Host, ...], facts: Facts, transport: str, attempt: int = 0
) -> Plan:
    _check_request(spec, hosts, transport)
    workers = agree_on_workers(spec, (), hosts)
    return make_plan(_with_checkpoints(request, spec, workers, facts), hosts, facts, attempt, transport)


def _target_of(checked: Checked) -> str:
    first = next(iter(checked.reports.values())).facts["devices"]
    return next((target for target, devices in first.items() if devices), "CPU")


def _with_devices(spec: JobSpec, host: Host) -> LaunchSettings:
    return spec.launch.model_copy(update={"devices": host.devices})


def _with_checkpoints(request: Request, spec: JobSpec, workers: int, facts: Facts) -> JobSpec:
    if request.choose_checkpoints is None:
        return spec
    return replace(spec, checkpoints=request.choose_checkpoints(workers, facts.run_dir))


def _read_job(request: Request) -> tuple[JobSpec, Path | None, str | None]:
    """Return what was asked, where its config lies, and the text of its rank table."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise RequestError("the current folder has been deleted. Change into one that exists.") from None
    config_path = Path(request.config) if request.config else None
    own, assigned = split_assignments(request.assignments)
    config = override(_read_config(config_path), own)
    settings = resolve(request.flags, os.environ, config, assigned)
    spec = JobSpec(
        settings,
        config,
        request.script_args,
        default_script=request.default_script,
        default_workers=request.default_workers,
    )
    table = _rank_table(spec, config_path)
    if table is None:
        return spec, config_path, None
    errors = [finding for finding in validate(table[1]) if finding.severity == "error"]
    if errors:
        raise ConfigError([finding.words(table[0]) for finding in errors])
    return replace(spec, rank_table=read_table(table[1], table[0])), config_path, table[1]


def _hostfile(spec: JobSpec) -> str | None:
    if spec.launch.hostfile is None:
        return None
    try:
        return Path(spec.launch.hostfile).read_text(errors="replace")
    except OSError as error:
        raise RequestError(
            f"{spec.launch.hostfile}: cannot read the hostfile: {error.strerror} ({spec.source('hostfile')})."
        ) from None


def call(app: Any, args: list[str], **how: Any) -> object:
    """Call a verb's app with what stands before `--`; what follows is for the script."""
    own, script_args = split_args(args)
    try:
        return app(own, obj=script_args, **how)
    except SystemExit as end:
        if end.code == WRONG_REQUEST:
            print("Arguments for the script stand after --.", file=sys.stderr)
        raise


def split_args(args: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Cut a command line at `--`: what follows belongs to the script."""
    if "--" not in args:
        return args, ()
    at = args.index("--")
    return args[:at], tuple(args[at + 1 :])


def given(**flags: Any) -> dict[str, Any]:
    """Keep the flags that were typed."""
    return {name: value for name, value in flags.items() if value not in (None, {})}


def _read_config(path: Path | None) -> Config:
    if path is None:
        return Config()
    try:
        return parse_config(path.read_text(), str(path))
    except FileNotFoundError:
        raise RequestError(f"{path}: no such config. Name the job's YAML with --config FILE.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path}: cannot read the config: {error}.") from None


def _rank_table(spec: JobSpec, config_path: Path | None) -> tuple[str, str] | None:
    """Return the name and text of the rank table that was asked for."""
    asked = spec.launch.rank_table
    if asked is None:
        return None
    choices = [Path(asked)]
    if config_path is not None and not spec.source("rank_table").startswith("-"):
        choices.insert(0, config_path.parent / asked)
    for choice in choices:
        if choice.is_file():
            return str(choice), choice.read_text(errors="replace")
    raise RankTableMissing(asked, spec.source("rank_table"))
