"""The options that verbs share, declared once; their texts come from the settings that they set."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from mslaunch.errors import Disagreement, RequestError
from mslaunch.plan.settings import LaunchSettings


def _setting(name: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=LaunchSettings.model_fields[name].description, show_default=False, **more)


Workers = Annotated[int | None, _setting("workers", "--workers", "--worker_num", "-n")]
LocalWorkers = Annotated[
    int | None,
    typer.Option("--local_worker_num", help="As in msrun: on one machine, the same as --workers.", hidden=True),
]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="The job's YAML.", metavar="FILE")]
Script = Annotated[str | None, _setting("script", "--script", metavar="FILE")]
ScriptArgument = Annotated[
    str | None, typer.Argument(help="The script, where --script is not given.", metavar="SCRIPT")
]
Devices = Annotated[str | None, _setting("devices", "--devices", metavar="LIST")]
Method = Annotated[str | None, _setting("method", "--method", metavar="NAME")]
Hosts = Annotated[str | None, _setting("hosts", "--hosts", metavar="LIST")]
Hostfile = Annotated[str | None, _setting("hostfile", "--hostfile", metavar="FILE")]
AcceptNewHostKeys = Annotated[bool | None, _setting("accept_new_host_keys", "--accept-new-host-keys")]
Transport = Annotated[str | None, _setting("transport", "--transport", metavar="NAME")]
Nodes = Annotated[int | None, _setting("nodes", "--nodes", "-N")]
Partition = Annotated[str | None, _setting("partition", "--partition", "-p", metavar="NAME")]
Time = Annotated[str | None, _setting("time", "--time", "-t", metavar="LIMIT")]
Account = Annotated[str | None, _setting("account", "--account", "-A", metavar="NAME")]
Requeue = Annotated[bool | None, _setting("requeue", "--requeue/--no-requeue")]
SbatchArgs = Annotated[list[str] | None, _setting("sbatch_args", "--sbatch-arg", metavar="OPTION")]
RankTable = Annotated[str | None, _setting("rank_table", "--rank-table", "--rank_table_file", metavar="FILE")]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", help="Variable for every rank, K=V; K alone takes it from here and writes it nowhere.", metavar="K=V"
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override one key of the config.", metavar="KEY=VALUE")]
MasterPort = Annotated[int | None, _setting("master_port", "--master-port", "--master_port")]
BindCores = Annotated[bool | None, _setting("bind_cores", "--bind-cores/--no-bind-cores")]
Tail = Annotated[str | None, _setting("tail", "--tail", metavar="RANKS")]
RunsDir = Annotated[str | None, _setting("runs_dir", "--runs-dir", "--log_dir", metavar="DIR")]
RunId = Annotated[str | None, _setting("run_id", "--run-id", metavar="NAME")]
Timeout = Annotated[float | None, _setting("timeout", "--timeout", metavar="SECONDS")]
StallTimeout = Annotated[float | None, _setting("stall_timeout", "--stall-timeout", metavar="SECONDS")]
MaxRestarts = Annotated[int | None, _setting("max_restarts", "--max-restarts", metavar="N")]
Run = Annotated[
    str | None, typer.Argument(help="The run, or the beginning of its name; by default the newest.", metavar="RUN")
]


RANKS_ONLY = "MSLAUNCH_ENV_"
"""MSLAUNCH_ENV_K holds the value of `--env K` where K itself would change the launcher too: in a Slurm job's script."""


def variables(pairs: list[str] | None) -> dict[str, str | None]:
    """Read `--env K=V` and `--env K`."""
    result: dict[str, str | None] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name.isidentifier():
            raise RequestError(f"--env {pair!r}: {name!r} is not the name of a variable. Write --env NAME=VALUE.")
        result[name] = value if equals else os.environ.get(f"{RANKS_ONLY}{name}")
    return result


LAUNCH = {
    "script_argument": ScriptArgument,
    "workers": Workers,
    "local_workers": LocalWorkers,
    "config": ConfigFile,
    "script": Script,
    "devices": Devices,
    "hosts": Hosts,
    "hostfile": Hostfile,
    "accept_new_host_keys": AcceptNewHostKeys,
    "transport": Transport,
    "nodes": Nodes,
    "partition": Partition,
    "time": Time,
    "account": Account,
    "requeue": Requeue,
    "sbatch_args": SbatchArgs,
    "method": Method,
    "rank_table": RankTable,
    "env": Env,
    "assignments": Set,
    "master_port": MasterPort,
    "bind_cores": BindCores,
    "tail": Tail,
    "runs_dir": RunsDir,
    "run_id": RunId,
    "timeout": Timeout,
    "stall_timeout": StallTimeout,
    "max_restarts": MaxRestarts,
}
"""What every verb that launches takes."""
_NOT_SETTINGS = ("script_argument", "local_workers", "config", "assignments")


def launching(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of every launch; it gets what was typed as one mapping, its first argument."""

    @wraps(verb)
    def call(**given: Any) -> None:
        verb({name: given.pop(name) for name in LAUNCH}, **given)

    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in LAUNCH.items()
    ]
    ordered = [own[0], *shared, *own[1:]]  # the context, and what launches share before what is the verb's own
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered]
    call.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
    return call


def settings(typed: dict[str, Any]) -> dict[str, Any]:
    """Turn what was typed into settings; what was not typed is left out."""
    flags = {name: value for name, value in typed.items() if name not in _NOT_SETTINGS}
    flags["workers"] = _agreed_workers(typed["workers"], typed["local_workers"])
    flags["script"] = one_script(typed["script"], typed["script_argument"])
    flags["env"] = variables(typed["env"])
    return {name: value for name, value in flags.items() if value not in (None, {}, [])}


def one_script(flag: str | None, argument: str | None) -> str | None:
    if flag and argument:
        raise RequestError(
            f"--script {flag} and {argument} both name the script. Arguments for the script stand after --."
        )
    if argument and argument.endswith((".yaml", ".yml")):
        raise RequestError(f"{argument} is no script. Did you mean --config {argument}?")
    return flag or argument


def _agreed_workers(workers: int | None, local_workers: int | None) -> int | None:
    if workers is not None and local_workers is not None and workers != local_workers:
        raise Disagreement(
            "number of ranks",
            (workers, "--workers"),
            (local_workers, "--local_worker_num"),
            "On one machine they are the same: leave --local_worker_num out.",
        )
    return workers if workers is not None else local_workers
