"""make_plan: from what was asked and what was found to one complete attempt. Opens no file, reads no clock."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from functools import partial
from typing import Any

import yaml

from mslaunch import layout
from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan import environment, methods, paths
from mslaunch.plan.model import Facts, File, Limits, Plan, Reach, Restarts
from mslaunch.plan.spec import JobSpec
from mslaunch.ranges import format_ranges
from mslaunch.ranktable.generate import from_hosts
from mslaunch.ranktable.versions import write_table

HERE = Reach()


def make_plan(
    spec: JobSpec,
    hosts: tuple[Host, ...],
    facts: Facts,
    attempt: int = 0,
    reach: Reach = HERE,
    method: methods.Method | None = None,
) -> Plan:
    """Decide everything about one attempt at the job; without a `method`, the built-in one that the job names."""
    moved: dict[str, str] = {}
    absolute = partial(_absolute, facts, moved)
    world_size = sum(len(host.devices) for host in hosts)
    args = paths.rewrite_args(spec.script_args, absolute)
    values = paths.rewrite_values(_with_device_num(spec, world_size), absolute)
    unset = environment.inherited_launch_variables(facts.environment)
    table = _rank_table(spec, hosts, facts)
    env = _common_env(spec, facts, world_size, attempt, table)
    env |= reach.env
    start = method or methods.METHODS[spec.launch.method]
    started = start(_job(spec, hosts, facts, env, args))
    return Plan(
        run_id=facts.run_id,
        attempt=attempt,
        run_dir=facts.run_dir,
        submit_dir=facts.submit_dir,
        job_dir=facts.job_dir,
        script=facts.script,
        method=spec.launch.method,
        transport=reach.name,
        device_target=facts.device_target,
        world_size=world_size,
        master=f"{hosts[0].address}:{facts.port}",
        hosts=hosts,
        env=started.env,
        unset=unset,
        secrets=tuple(spec.secrets),
        carried=environment.carried(facts.environment, unset) if reach.carries_environment else (),
        tail=_tail(spec, world_size),
        limits=_limits(spec),
        restarts=_restarts(spec),
        setup=spec.launch.setup,
        files=(*_config_files(spec, values), *_checkpoint_files(spec), *table, *started.files),
        processes=started.processes,
        workdir=facts.workdir,
        sources_dir=facts.sources_dir,
        shared=_shared(spec, facts),
        require_init=spec.launch.require_init,
        share_devices=spec.launch.share_devices,
        notes=_notes(spec, unset, moved),
        sources={name: f"{_shown(spec, name)}, from {spec.source(name)}" for name in spec.settings.sources},
    )


def _job(
    spec: JobSpec, hosts: tuple[Host, ...], facts: Facts, env: dict[str, str], args: tuple[str, ...]
) -> methods.PlacedJob:
    """Put together what every method starts from."""
    return methods.PlacedJob(
        spec=spec,
        hosts=hosts,
        facts=facts,
        world_size=sum(len(host.devices) for host in hosts),
        env=env,
        script=posixpath.join(facts.run_dir, layout.CODE, facts.script),
        args=(*_config_args(spec, facts), *args),
        ranks=tuple(place_ranks(spec, hosts, facts)),
    )


def _absolute(facts: Facts, moved: dict[str, str], path: str) -> str:
    """Make a path absolute where the ranks would not find it otherwise, and note that."""
    if path not in facts.outside:
        return path
    moved[path] = posixpath.normpath(posixpath.join(facts.submit_dir, path))
    return moved[path]


def _shown(spec: JobSpec, name: str) -> Any:
    """The value of a setting, without the values of secrets."""
    value = getattr(spec.launch, name)
    return {key: None if key in spec.secrets else text for key, text in value.items()} if name == "env" else value


def _shared(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    """The folders that are meant to be the project's own, from its root."""
    return tuple(posixpath.normpath(posixpath.join(facts.workdir, name)) for name in spec.launch.shared)


def _limits(spec: JobSpec) -> Limits:
    launch = spec.launch
    return Limits(
        grace=launch.grace,
        timeout=launch.timeout,
        stall_timeout=launch.stall_timeout,
        on_stall=launch.on_stall,
        exit_skew=launch.exit_skew,
        lost_after=launch.lost_after,
    )


def _restarts(spec: JobSpec) -> Restarts:
    launch = spec.launch
    return Restarts(
        launch.max_restarts, launch.backoff, launch.no_restart_codes, launch.min_workers, launch.checkpoints
    )


def place_ranks(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> Iterator[methods.Rank]:
    """Number the ranks host by host in the order given, and give each its device and its share of the cores."""
    rank = 0
    for node, host in enumerate(hosts):
        cores = facts.hosts[host.name].cores
        for local_rank, device_id in enumerate(host.devices):
            share = core_share(cores, local_rank, len(host.devices)) if spec.launch.bind_cores else ()
            yield methods.Rank(rank, node, host, local_rank, device_id, share)
            rank += 1


def core_share(cores: tuple[int, ...], local_rank: int, ranks: int) -> tuple[int, ...]:
    """Cut the cores into equal shares; with more ranks than cores, ranks take turns on single cores."""
    each = len(cores) // ranks
    if each == 0:
        return (cores[local_rank % len(cores)],)
    return cores[local_rank * each : (local_rank + 1) * each]


def _with_device_num(spec: JobSpec, world_size: int) -> dict[str, Any]:
    values = dict(spec.config.values)
    if values.get("device_num") in (None, 1):
        values["device_num"] = world_size
    return values


def _config_args(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    if not spec.config.name or spec.launch.config_arg is None:
        return ()
    return (f"{spec.launch.config_arg}={posixpath.join(facts.run_dir, layout.CONFIG)}",)


def _config_files(spec: JobSpec, values: dict[str, Any]) -> Iterator[File]:
    documents = [values, *spec.config.documents]
    yield File(layout.CONFIG, yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True))
    yield File(layout.CONFIG_JSON, json.dumps(_named(values), indent=1, default=str) + "\n")


def _named(value: Any) -> Any:
    """JSON has only text for names, where YAML may have dates and numbers."""
    if isinstance(value, dict):
        return {str(name): _named(inner) for name, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list) else value


def _checkpoint_files(spec: JobSpec) -> Iterator[File]:
    given = spec.checkpoints
    if given is not None:
        told = {"files": given.files, "strategy": given.strategy, "step": given.step}
        yield File(layout.CHECKPOINTS, json.dumps(told, indent=1) + "\n")


def _rank_table(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> tuple[File, ...]:
    content = facts.rank_table
    if content is None and spec.launch.method == "rank-table":
        content = write_table(from_hosts(hosts))
    return () if content is None else (File(layout.RANK_TABLE, content),)


def _common_env(spec: JobSpec, facts: Facts, world_size: int, attempt: int, table: tuple[File, ...]) -> dict[str, str]:
    env = {
        **environment.tuned_defaults(facts.environment, world_size),
        **environment.absolute_pythonpath(facts.environment, facts.submit_dir),
        "RANK_SIZE": str(world_size),
        "MSLAUNCH_RUN_ID": facts.run_id,
        "MSLAUNCH_RUN_DIR": facts.run_dir,
        "MSLAUNCH_ATTEMPT": str(attempt),
        "MSLAUNCH_CONFIG": posixpath.join(facts.run_dir, layout.CONFIG_JSON),
        "MSLAUNCH_SUBMIT_DIR": facts.submit_dir,
        "MSLAUNCH_JOB_DIR": facts.job_dir,
        "MSLAUNCH_CWD": spec.launch.cwd,
    }
    if facts.workdir:
        env["MSLAUNCH_WORKDIR"] = facts.workdir
    if shared := _shared(spec, facts):
        env["MSLAUNCH_SHARED"] = ":".join(shared)
    if spec.secrets:
        env["MSLAUNCH_SECRETS"] = ",".join(spec.secrets)
    if spec.checkpoints:
        env["MSLAUNCH_CHECKPOINTS"] = posixpath.join(facts.run_dir, layout.CHECKPOINTS)
    if table:
        env["RANK_TABLE_FILE"] = posixpath.join(facts.run_dir, layout.RANK_TABLE)
    for name, value in spec.launch.env.items():
        if name in environment.LAUNCH_VARIABLES or name.startswith("MSLAUNCH_"):
            raise RequestError(f"{spec.source('env')}: {name} is what mslaunch sets for each rank. Leave it out.")
        if value is None:
            if name not in facts.environment:
                raise RequestError(
                    f"{spec.source('env')}: {name} has no value here. Export it first, or write --env {name}=VALUE."
                )
        elif name not in spec.secrets:
            env[name] = value
    return env


def _tail(spec: JobSpec, world_size: int) -> tuple[int, ...]:
    tail = spec.launch.tail
    if tail == "none":
        return ()
    if tail == "all":
        return tuple(range(world_size))
    beyond = [rank for rank in tail if rank >= world_size]
    if beyond:
        raise RequestError(
            f"{spec.source('tail')}: rank {format_ranges(beyond)} does not exist; the ranks are 0 to {world_size - 1}."
        )
    return tail


def _notes(spec: JobSpec, unset: tuple[str, ...], moved: dict[str, str]) -> tuple[str, ...]:
    given = spec.checkpoints.notes if spec.checkpoints else ()
    return (*spec.settings.notes, *spec.config.notes, *given, *_dropped(unset), *paths.describe(moved))


def _dropped(unset: tuple[str, ...]) -> Iterator[str]:
    names = [name for name in unset if not name.startswith("MSLAUNCH_")]
    if names:
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield f"not passed on to the ranks, since another launcher or the shell had set them: {shown}"
