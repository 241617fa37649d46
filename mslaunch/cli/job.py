"""From a command line to a plan: the steps that every launching verb takes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.errors import WRONG_REQUEST, ConfigError, RankTableMissing, RequestError
from mslaunch.launch.facts import find_devices, find_script, gather
from mslaunch.plan.config import Config, override, parse_config, split_assignments
from mslaunch.plan.make import make_plan
from mslaunch.plan.model import Checkpoints, Plan
from mslaunch.plan.settings import resolve
from mslaunch.plan.spec import JobSpec, agree_on_workers, local_host
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


def plan_job(request: Request, elsewhere: bool = False) -> Plan:
    """Read, check and plan; nothing is written or started. A job that runs elsewhere needs nothing of this machine."""
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
    if table is not None:
        errors = [finding for finding in validate(table[1]) if finding.severity == "error"]
        if errors:
            raise ConfigError([finding.words(table[0]) for finding in errors])
        spec = replace(spec, rank_table=read_table(table[1], table[0]))
    target, found = find_devices(config.values.get("device_target"))
    workers = agree_on_workers(spec, found)
    host = local_host(spec, workers, () if elsewhere else found, "CPU" if elsewhere else target)
    facts = gather(spec, find_script(spec, config_path), target, table[1] if table else None, elsewhere)
    if request.choose_checkpoints is not None:
        spec = replace(spec, checkpoints=request.choose_checkpoints(workers, facts.run_dir))
    return make_plan(spec, (host,), facts)


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
