"""The command that a queue's job runs: what was asked for here, for the launcher in the job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.launcher.program import FoundProgram
from mslaunch.launcher.read import ReadJob, Request
from mslaunch.plan.combinations import Combination
from mslaunch.settings.resolve import given_by_variables
from mslaunch.settings.yaml_config import read_scalar, write_scalar
from mslaunch.settings.yaml_config import without_secrets as config_without_secrets
from mslaunch.shared.secret_names import is_secret
from mslaunch.transports.base import Command

_ENV, _WEBHOOK = "launch.env", "launch.webhook"


def split_secrets(assignments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the texts of `--set` without the values of secrets, and flags that give the same values."""
    kept: list[str] = []
    flags: dict[str, Any] = {}
    for one in assignments:
        key, _, raw = one.partition("=")
        if key == _WEBHOOK:
            flags["webhook"] = read_scalar(raw)
            continue
        variables = read_scalar(raw) if key == _ENV else None
        if isinstance(variables, dict) and (secrets := _secrets(variables)):
            flags["env"] = secrets
            kept.append(f"{_ENV}={write_scalar({**variables, **dict.fromkeys(secrets)})}")
        else:
            kept.append(one)
    return tuple(kept), flags


def without_secrets(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags for a file: no address of a webhook, and of secret variables the names alone."""
    kept = {name: value for name, value in flags.items() if name != "webhook" or value is None}
    if env := kept.get("env"):
        kept["env"] = {**env, **dict.fromkeys(_secrets(env))}
    return kept


def take_secrets(request: Request, combinations: tuple[Combination, ...]) -> tuple[Request, tuple[Combination, ...]]:
    """Move the secrets of a sweep's combinations, which are shown and kept, to the flags, which all runs share."""
    split = [split_secrets(one.assignments) for one in combinations]
    secrets = {name: value for _, found in split for name, value in found.items()}
    for name in secrets:
        if f"launch.{name}" in combinations[0].varied:
            why = "it holds a secret, which is the same for all runs of a sweep. Give it one value."
            raise RequestError(f"--set launch.{name}: {why}")
    typed = [{key: raw for key, _, raw in (one.partition("=") for one in kept)} for kept, _ in split]
    combinations = tuple(replace(one, typed=own) for one, own in zip(combinations, typed, strict=True))
    flags = {**secrets, **request.flags}
    if "env" in secrets:
        flags["env"] = {**secrets["env"], **(request.flags.get("env") or {})}
    return replace(request, flags=flags), combinations


def _secrets(variables: Mapping[Any, Any]) -> dict[Any, Any]:
    given = {name: value for name, value in variables.items() if value is not None}
    return {name: value for name, value in given.items() if is_secret(str(name), str(value))}


def _named(job: ReadJob, program: FoundProgram) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that name the program once more, for a launcher that starts in the same folder, and what follows."""
    launch, args = job.spec.launch, job.spec.script_args
    if launch.module is not None:
        return ("-m", launch.module), args
    if launch.command is not None:
        return launch.command[:1], (*launch.command[1:], *args)
    return (f"--script={program.file or ''}",), args


def own_command(job: ReadJob, program: FoundProgram) -> Command:
    """The command that a queue runs: what was asked for here, for the launcher in the job; it holds no secret."""
    named, args = _named(job, program)
    assignments, secrets = split_secrets(job.request.assignments)
    flags = without_secrets({**secrets, **given_by_variables(job.spec.launch, job.spec.sources), **job.request.flags})
    beside = Path(sys.executable).with_name("mslaunch")
    table = job.spec.rank_table
    return Command(
        program=(str(beside),) if beside.is_file() else (sys.executable, "-m", "mslaunch"),
        verb=job.request.verb,
        own=job.request.verb_options,
        flags={**flags, "env": {**(flags.get("env") or {}), **dict.fromkeys(job.spec.secrets)}},
        assignments=assignments,
        config=None if job.spec.config.text is None else config_without_secrets(job.spec.config.text),
        named=named,
        rank_table=str(Path(table.name).absolute()) if table else None,
        script_args=args,
    )
