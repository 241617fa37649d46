"""The options that verbs share, declared once; their texts come from the settings that they set."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from mslaunch.cli.parsing.arguments import ProgramWords
from mslaunch.cli.parsing.run_options import AsOwner, Run, RunsDir
from mslaunch.errors import Disagreement, RequestError
from mslaunch.launcher.read import Request
from mslaunch.plan.methods import METHODS
from mslaunch.settings.launch import Flag, LaunchSettings, flag_of
from mslaunch.settings.program import settings_of
from mslaunch.transports.registry import BUILT_IN

T = TypeVar("T")
__all__ = ["AsOwner", "Run", "RunsDir"]


def _setting_flags() -> dict[str, Flag]:
    """Return how each setting of `launch:` is typed, with what it means."""
    choices = {"method": tuple(METHODS), "transport": tuple(BUILT_IN)}
    flags = {}
    for name in LaunchSettings.model_fields:
        if flag := flag_of(name, choices.get(name, ())):
            flags[name] = flag
    return flags


_FLAGS = _setting_flags()


def option(name: str) -> Any:
    """The option of a setting, as the settings table declares it."""
    flag = _FLAGS[name]
    return typer.Option(*flag.names, help=flag.help, show_default=False, metavar=flag.metavar)


Hosts = Annotated[str | None, option("hosts")]
Hostfile = Annotated[str | None, option("hostfile")]
AcceptNewHostKeys = Annotated[bool | None, option("accept_new_host_keys")]
Transport = Annotated[str | None, option("transport")]
MasterPort = Annotated[int | None, option("master_port")]
LocalWorkers = Annotated[
    int | None,
    typer.Option("--local_worker_num", help="As in msrun: ranks of each node.", hidden=True),
]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="The job's YAML.", metavar="FILE")]
Module = Annotated[
    bool,
    typer.Option("-m", "--module", help="What follows is a Python module, as for `python -m`.", show_default=False),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override one key of the config.", metavar="KEY=VALUE")]


RANKS_ONLY = "MSLAUNCH_ENV_"  # as a queue's job has it: settings/environment.py


def variables(pairs: list[str] | None) -> dict[str, str | None]:
    """Read `--env K=V` and `--env K`."""
    values: dict[str, str | None] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not name.isidentifier() or not name.isascii():
            raise RequestError(f"--env {pair!r}: {name!r} is not the name of a variable. Write --env NAME=VALUE.")
        values[name] = value if equals else os.environ.get(f"{RANKS_ONLY}{name}")
    return values


_KINDS: dict[Any, Any] = {list: list[str]}
_OWN: dict[str, Any] = {
    "is_module": Module,
    "config": ConfigFile,
    "assignments": Set,
    "local_workers": LocalWorkers,
}
LAUNCH: dict[str, Any] = _OWN | {
    name: Annotated[_KINDS.get(flag.kind, flag.kind) | None, option(name)] for name, flag in _FLAGS.items()
}
"""What every verb that launches takes."""


def launching(verb: Callable[..., T]) -> Callable[..., T]:
    """Give a verb the options of every launch; it gets what was typed as one mapping, its first argument."""

    @wraps(verb)
    def call(**typed: Any) -> T:
        return verb({name: typed.pop(name) for name in LAUNCH}, **typed)

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
    flags = {name: value for name, value in typed.items() if name not in _OWN}
    flags |= _ranks(typed)
    flags["env"] = variables(typed["env"])
    return {name: value for name, value in flags.items() if value not in (None, {}, [])}


def request(
    config: str | None,
    assignments: tuple[str, ...],
    flags: dict[str, Any],
    program: ProgramWords,
    is_module: bool = False,
    **more: Any,
) -> Request:
    """What is asked for: settings, with the program that was typed as one of them, and the program's arguments."""
    argv = program.argv or (program.args if is_module else ())
    if is_module and not argv:
        raise RequestError("-m: which module? Write it after all options, for example -m pkg.train.")
    if argv and "script" in flags:
        raise RequestError(f"--script {flags['script']} and {argv[0]} both name the program. Leave one out.")
    if argv and argv[0].endswith((".yaml", ".yml")):
        raise RequestError(f"{argv[0]} is no script. Did you mean --config {argv[0]}?")
    settings_of_program, args = settings_of(argv, is_module) if argv else ({}, program.args)
    more = {"args_may_name": not argv, "notes": program.notes, **more}
    return Request(config, assignments, {**flags, **settings_of_program}, args, **more)


def _ranks(typed: dict[str, Any]) -> dict[str, int | None]:
    """How many ranks in all and on each node: on one machine, the ranks of a node are all of them."""
    workers, local = typed["workers"], typed["local_workers"]
    if local is None:
        return {}
    if workers is not None and local > workers:
        fix = "A node cannot have more ranks than the job."
        raise Disagreement("number of ranks", (workers, "--workers"), (local, "--local_worker_num"), fix)
    is_one_node = typed["nnodes"] in (None, "1", "1:1") and workers in (None, local)
    return {"workers": local} if is_one_node else {"workers_per_node": local}
