"""make_plan: from a job, its hosts and the facts about them to one complete attempt. Opens no file, reads no clock."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from mslaunch.documents.yaml_text import write_yaml
from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan import argument_paths, binding, variables
from mslaunch.plan.methods.method import MethodPlan, PlacedJob, Rank
from mslaunch.plan.model import Copy, Facts, File, LinePattern, Plan, Reach, Restarts, Sync, TimeLimits
from mslaunch.plan.program import NestedLauncher, Program, reads_script
from mslaunch.plan.spec import JobSpec
from mslaunch.ranges import format_ranges
from mslaunch.settings.launch import LaunchSettings
from mslaunch.settings.value_types import write_setting
from mslaunch.shared import layout
from mslaunch.shared.secret_names import MASK

_SIZES = ("RANK_SIZE", "DEVICE_NUM")
"""How many ranks the scripts for rank tables export, of the job and of a host."""


HERE = Reach()


def make_plan(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts, attempt: int = 0, reach: Reach = HERE) -> Plan:
    """Decide everything about one attempt at the job."""
    world_size = sum(len(host.devices) for host in hosts)
    launcher_notes: tuple[str, ...] = ()
    if facts.nested is not None and not spec.launch.allow_launcher:
        launcher_notes = _check_launcher(facts.nested, world_size)
    moved: dict[str, str] = {}
    absolute = partial(_absolute, facts, moved)
    args = (*_config_args(spec, facts), *argument_paths.rewrite_args(facts.program.args, absolute))
    program = replace(facts.program, args=args)
    values = dict(spec.config.values)
    if values.get("device_num") in (None, 1):
        values["device_num"] = world_size
    config = argument_paths.rewrite_values(values, absolute)
    table = _rank_table(spec, hosts, facts)
    env = {**_common_env(spec, facts, hosts, attempt, table), **reach.env, **_user_env(spec, facts, absolute)}
    stdin = _stdin(spec, program, world_size, reach)
    ranks = tuple(place_ranks(spec, hosts, facts))
    job = PlacedJob(spec, hosts, facts, world_size, env, program, ranks)
    started = spec.method.plan(job)
    files = (*_job_files(spec, config), *table, *started.files)
    notes = (*facts.notes, *launcher_notes, *_notes(job, moved))
    started = MethodPlan(started.env, started.processes, files)
    return _complete(job, started, attempt, reach, stdin, notes)


def _complete(
    job: PlacedJob, started: MethodPlan, attempt: int, reach: Reach, stdin: int | None, notes: tuple[str, ...]
) -> Plan:
    """Put the plan together: what was decided, and the settings and facts that it carries as they are."""
    spec, facts, launch = job.spec, job.facts, job.spec.launch
    unset = variables.inherited_launch_variables(facts.environment)
    return Plan(
        run_id=facts.run_id,
        attempt=attempt,
        run_dir=facts.run_dir,
        submit_dir=facts.submit_dir,
        job_dir=facts.job_dir,
        script=job.program.label,
        program=job.program,
        method=spec.method.name,
        transport=reach.name,
        device_target=facts.device_target,
        world_size=job.world_size,
        master=f"{job.hosts[0].address}:{facts.port}",
        hosts=job.hosts,
        env=started.env,
        unset=unset,
        secrets=tuple(spec.secrets),
        carried=variables.carried(facts.environment, unset) if reach.carries_environment else (),
        tail=_tail(spec, job.world_size, stdin),
        limits=TimeLimits(**{limit.name: getattr(launch, limit.name) for limit in fields(TimeLimits)}),
        restarts=_restarts(launch),
        setup=launch.setup,
        stdin=stdin,
        files=started.files,
        processes=started.processes,
        workdir=facts.workdir,
        sources_dir=facts.sources_dir,
        shared=_shared(spec, facts),
        require_init=launch.require_init,
        share_devices=launch.share_devices,
        allow_launcher=launch.allow_launcher,
        metrics=_metrics(launch),
        sync=_sync(job) if launch.sync else None,
        report=launch.report,
        notes=notes,
        tags=tuple(dict.fromkeys(launch.tags)),
        sources=_sources(spec, facts),
    )


def _check_launcher(nested: NestedLauncher, ranks: int) -> tuple[str, ...]:
    """Refuse to start a launcher once per rank: each would start the whole job. Started once, it gets a note."""
    fact = f"{nested.where} {nested.what}"
    if ranks == 1:
        return (f"{fact}, and is started once; the processes that it starts are not ranks of this run",)
    raise RequestError(
        f"{fact}, and {ranks} ranks would start it {ranks} times. Type `{nested.instead(ranks)}` instead, -n 1 to "
        f"start it once, or --allow-launcher to start it in every rank."
    )


def _absolute(facts: Facts, moved: dict[str, str], path: str) -> str:
    """Make a path absolute where the ranks would not find it otherwise, and note that."""
    if path not in facts.outside:
        return path
    moved[path] = posixpath.normpath(posixpath.join(facts.submit_dir, path))
    return moved[path]


def _shown(spec: JobSpec, name: str) -> str:
    """The value of a setting, without the values of secrets."""
    value = getattr(spec.launch, name)
    if name == "webhook" and value:
        return f"{value.partition('://')[0]}://{MASK}"
    if name == "env":
        value = {key: None if key in spec.secrets else text for key, text in value.items()}
    if name == "nnodes" and value:
        return f"{value[0]}:{value[1]}"
    return write_setting(value)


def _shared(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    """The folders that are meant to be the project's own, from its root."""
    return tuple(posixpath.normpath(posixpath.join(facts.workdir, name)) for name in spec.launch.shared)


def _restarts(launch: LaunchSettings) -> Restarts:
    return Restarts(
        limit=launch.max_restarts,
        backoff=launch.backoff,
        not_after=launch.no_restart_codes,
        min_workers=launch.min_workers,
        checkpoints=launch.checkpoints,
        checkpoint_prefix=launch.checkpoint_prefix,
    )


def _sync(job: PlacedJob) -> Sync | None:
    sync = job.spec.launch.sync
    if sync is None:
        return None
    before = tuple(Copy(copy.source, copy.target) for copy in sync.before)
    after = tuple(Copy(copy.source, copy.target) for copy in sync.after)
    return Sync(before, after, sync.endpoint, {host.name: job.facts.hosts[host.name].python for host in job.hosts})


def _metrics(launch: LaunchSettings) -> tuple[LinePattern, ...] | None:
    if launch.metrics is False:
        return None
    if launch.metrics is True:
        return ()
    return tuple(LinePattern(row.name, row.regex) for row in launch.metrics)


def place_ranks(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> Iterator[Rank]:
    """Number the ranks host by host in the order given, and give each its device, its cores and its memory."""
    rank = 0
    for node, host in enumerate(hosts):
        bindings = binding.bind_ranks(spec, host, facts, rank)
        for local_rank, device_id in enumerate(host.devices):
            yield Rank(rank, node, host, local_rank, device_id, bindings[local_rank])
            rank += 1


def _config_args(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    if not spec.config.name or spec.launch.config_arg is None or _leaves_config_out(spec, facts):
        return ()
    return (f"{spec.launch.config_arg}={posixpath.join(facts.run_dir, layout.CONFIG)}",)


def _leaves_config_out(spec: JobSpec, facts: Facts) -> bool:
    """A strict parser ends at an argument that it does not know: only what was asked for is given to any script."""
    return not facts.takes_config and spec.sources["config_arg"] == "default"


def _sources(spec: JobSpec, facts: Facts) -> dict[str, str]:
    sources = {name: f"{_shown(spec, name)}, from {source}" for name, source in spec.sources.items()}
    if spec.config.name and _leaves_config_out(spec, facts):
        why = f"not given: {facts.program.label} does not seem to take it; MSLAUNCH_CONFIG names the configuration"
        sources["config_arg"] += f" ({why})"
    return sources


def _job_files(spec: JobSpec, values: dict[str, Any]) -> Iterator[File]:
    """The configuration as the script reads it, and the checkpoint that an inference job is given."""
    yield File(layout.CONFIG, write_yaml([values, *spec.config.documents]))
    yield File(layout.CONFIG_JSON, json.dumps(_named(values), indent=1, default=str) + "\n")
    checkpoints = spec.checkpoints
    if checkpoints is not None:
        document = {"files": checkpoints.files, "strategy": checkpoints.strategy, "step": checkpoints.step}
        yield File(layout.CHECKPOINTS, json.dumps(document, indent=1) + "\n")


def _named(value: Any) -> Any:
    """JSON has only text for names, where YAML may have dates and numbers."""
    if isinstance(value, dict):
        return {str(name): _named(inner) for name, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list) else value


def _rank_table(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> tuple[File, ...]:
    content = facts.rank_table
    if content is None and spec.method.needs_rank_table:
        from mslaunch.ranktable.generate import from_hosts
        from mslaunch.ranktable.versions import write_table

        _check_addresses(spec, hosts, facts)
        content = write_table(from_hosts(hosts))
    return () if content is None else (File(layout.RANK_TABLE, content),)


def _check_addresses(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> None:
    """Refuse a table that HCCL would refuse: of several NPU hosts, it needs the addresses of devices."""
    if facts.device_target == "Ascend" and len(hosts) > 1:
        names = ",".join(host.address for host in hosts)
        raise RequestError(
            f"{spec.sources['method']}: a rank table of several hosts needs the addresses of their devices. Write one "
            f"with `mslaunch rank-table probe --hosts {shlex.quote(names)} -o table.json`, and give --rank-table "
            f"table.json."
        )


def _common_env(
    spec: JobSpec, facts: Facts, hosts: tuple[Host, ...], attempt: int, table: tuple[File, ...]
) -> dict[str, str]:
    world_size = sum(len(host.devices) for host in hosts)
    env = {
        **variables.tuned_defaults(facts.environment, world_size),
        **variables.absolute_pythonpath(facts.environment, facts.submit_dir),
        **facts.program.python_env,
        "RANK_SIZE": str(world_size),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": str(variables.store_port(facts.port)),
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
    return env


def _user_env(spec: JobSpec, facts: Facts, absolute: Callable[[str], str]) -> dict[str, str]:
    """The user's variables: those of launch.env by value, and paths in them and in the shell's made absolute.

    Variables of launch.env without a value are secrets, and in no file.
    """
    env = {}
    for name, value in spec.launch.env.items():
        if variables.is_identity(name):
            fix = "Give --master-port instead" if name == "MS_SCHED_PORT" else "Leave it out"
            raise RequestError(f"{spec.sources['env']}: {name} is what mslaunch sets for each rank. {fix}.")
        if value is None and name not in facts.environment:
            raise RequestError(
                f"{spec.sources['env']}: {name} has no value here. Export it first, or write --env {name}=VALUE."
            )
        if value is not None and name not in spec.secrets:
            env[name] = value
    of_shell = argument_paths.rewrite_variables(facts.environment, absolute)
    return {**of_shell, **env, **argument_paths.rewrite_variables(env, absolute)}


def _stdin(spec: JobSpec, program: Program, world_size: int, reach: Reach) -> int | None:
    """The rank that reads the launcher's standard input: one that was named, else the only one."""
    reader = spec.launch.stdin
    if world_size > 1 and reads_script(program):
        raise RequestError(
            f"`{program.what} -` reads its script from standard input, which one rank of {world_size} can do at most. "
            f"Write it to a file, and name that."
        )
    possible = reach.passes_stdin and not spec.method.by_script
    if not isinstance(reader, int):
        return 0 if reader == "auto" and possible and world_size == 1 else None
    if not possible:
        raise RequestError(
            f"{spec.sources['stdin']}: only a rank on this machine that mslaunch itself starts and follows can read "
            f"it. Leave it out, or --method, --hosts and --detach."
        )
    if reader >= world_size:
        raise RequestError(f"{spec.sources['stdin']}: rank {reader} does not exist; the last one is {world_size - 1}.")
    return reader


def _tail(spec: JobSpec, world_size: int, reader: int | None) -> tuple[int, ...]:
    tail = spec.launch.tail
    if reader is not None and spec.sources["tail"] == "default":
        return tuple(sorted({0, reader}))
    if tail == "none":
        return ()
    if tail == "all":
        return tuple(range(world_size))
    beyond = [rank for rank in tail if rank >= world_size]
    if beyond:
        raise RequestError(
            f"{spec.sources['tail']}: rank {format_ranges(beyond)} does not exist; the ranks are 0 to {world_size - 1}."
        )
    return tail


def _notes(job: PlacedJob, moved: dict[str, str]) -> Iterator[str]:
    spec = job.spec
    yield from (*spec.notes, *spec.config.notes)
    if spec.checkpoints:
        yield from spec.checkpoints.notes
    yield from _variable_notes(job)
    if spec.launch.numa or spec.launch.node_map:
        yield from binding.describe(spec, job.hosts, job.facts)
    for old, new in moved.items():
        yield f"{old} is given to the script as {new}, since the ranks run in folders of their own"


def _variable_notes(job: PlacedJob) -> Iterator[str]:
    """Name the variables of the shell that the ranks do not get, and those that contradict the job."""
    shell = job.facts.environment
    unset = variables.inherited_launch_variables(shell)
    names = [name for name in unset if not name.startswith("MSLAUNCH_")]
    if names:
        listed = ", ".join(names[:6])
        if len(names) > 6:
            listed += f" and {len(names) - 6} more"
        yield f"not passed on to the ranks, since another launcher or the shell had set them: {listed}"
    if "MSLAUNCH_RUN_DIR" in shell:
        return  # a rank that launches: these describe its own job
    if shell.get("RANK_TABLE_FILE") and job.facts.rank_table is None:
        yield "RANK_TABLE_FILE is not used; give --rank-table FILE"
    for name in _SIZES:
        text = shell.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 6:
            if int(text) not in (0, job.world_size):
                started = "1 rank is" if job.world_size == 1 else f"{job.world_size} ranks are"
                yield f"{name}={text} is set here, and {started} started: give --workers {int(text)}"
            return
