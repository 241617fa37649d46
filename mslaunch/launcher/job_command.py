"""The command that a queue's job runs: what was asked for here, for the launcher in the job."""

from __future__ import annotations

import sys
from pathlib import Path

from mslaunch.launcher.request import ReadJob
from mslaunch.launcher.secret_settings import split_secrets, without_secrets
from mslaunch.settings.resolve import given_by_variables
from mslaunch.settings.yaml_config import without_secrets as config_without_secrets
from mslaunch.transports.base import Command


def _named(job: ReadJob) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words that name the program once more, for a launcher that starts in the same folder, and what follows."""
    launch, args = job.spec.launch, job.spec.script_args
    if launch.module is not None:
        return ("-m", launch.module), args
    if launch.command is not None:
        return launch.command[:1], (*launch.command[1:], *args)
    return (f"--script={job.program.file or ''}",), args


def own_command(job: ReadJob) -> Command:
    """The command that a queue runs: what was asked for here, for the launcher in the job; it holds no secret."""
    named, args = _named(job)
    assignments, secrets = split_secrets(job.request.assignments)
    flags = without_secrets({**secrets, **given_by_variables(job.spec.settings), **job.request.flags})
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
