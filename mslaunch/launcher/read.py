"""The first stage: from what a person or a program asks for to the job that it describes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import ConfigError, RankTableUnreadable, RequestError
from mslaunch.hosts import Host
from mslaunch.launcher.program import with_typed_python
from mslaunch.plan.methods import find_method
from mslaunch.plan.model import File
from mslaunch.plan.spec import TRAIN_SCRIPT, JobSpec, named_hosts
from mslaunch.settings.launch import PROGRAM_SETTINGS, settings_of
from mslaunch.settings.resolve import resolve
from mslaunch.settings.yaml_config import JobConfig, override, parse_config, split_assignments
from mslaunch.transports.cluster_environment import detect

if TYPE_CHECKING:
    from mslaunch.launcher.inference import ServedSet


CARRIED = "MSLAUNCH_WEBHOOK"
"""What the URL is called among the secrets that go with a queue's job."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is to be done when a run has ended."""

    on_end: str | None = None
    webhook: str | None = field(default=None, repr=False)
    """Often a secret: chat services have their token in the path. So it is in no file of the run."""
    submit_dir: str = "."

    def __bool__(self) -> bool:
        return self.on_end is not None or self.webhook is not None


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """The sharded checkpoint that an inference job serves."""

    path: Path
    strategy: Path | None = None
    predict_strategy: Path | None = None
    step: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a person or a program asks for, before any file is read."""

    config: str | None = None
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    script_args: tuple[str, ...] = ()
    args_may_name: bool = False
    """The first argument is the program, where nothing else names one."""
    notes: tuple[str, ...] = ()
    """What is to be said of the request itself."""
    offers_stdin: bool = False
    """A rank may read the standard input of this process."""
    default_script: str = TRAIN_SCRIPT
    checkpoint: CheckpointRequest | None = None
    files: tuple[File, ...] = ()
    """Files that the run's folder is to have besides those that are planned."""
    config_text: str | None = None
    """The config's text, where it has been read already."""
    verb: str = "train"
    verb_options: tuple[str, ...] = ()
    """What was typed for this verb alone."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A request with what it names on this machine: config, hostfile and rank table."""

    request: Request
    spec: JobSpec
    config_path: Path | None
    rank_table: str | None
    """The text of the rank table."""
    named: tuple[Host, ...]
    """The hosts that were named."""
    checkpoint: ServedSet | None = None


def read(request: Request) -> ReadJob:
    """Read and check everything that a request names on this machine."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise RequestError("the current folder has been deleted. Change into one that exists.") from None
    checkpoint = None
    if request.checkpoint is not None:
        from mslaunch.launcher.inference import read_set  # heavy, and no part of a training job

        checkpoint = read_set(request.checkpoint)
    config_path = Path(request.config) if request.config else None
    own, assigned = split_assignments(request.assignments)
    config = override(_read_config(config_path, request.config_text), own)
    settings = resolve(request.flags, os.environ, config, assigned)
    if request.args_may_name and all(getattr(settings.values, name) is None for name in PROGRAM_SETTINGS):
        request = _named_by_args(request)
        settings = resolve(request.flags, os.environ, config, assigned)
    spec = JobSpec(
        settings.values,
        settings.sources,
        config,
        find_method(settings),
        request.script_args,
        default_script=request.default_script,
        default_workers=checkpoint.default_workers if checkpoint else None,
        notes=settings.notes,
    )
    if spec.launch.command:
        spec = with_typed_python(spec)
    text = None
    if spec.launch.rank_table is not None or spec.method.needs_rank_table:
        spec, text = _read_rank_table(spec, config_path)
    hosts: tuple[Host, ...] = ()
    if spec.launch.hosts is not None or spec.launch.hostfile is not None:
        hosts = named_hosts(spec, _hostfile(spec))
    return ReadJob(request, spec, config_path, text, hosts, checkpoint)


def _named_by_args(request: Request) -> Request:
    """The request with its first argument as the program."""
    args = request.script_args
    if not args or args[0].startswith("-"):
        return request
    program, left = settings_of(args)
    return replace(request, flags={**request.flags, **program}, script_args=left, args_may_name=False)


def _hostfile(spec: JobSpec) -> str | None:
    if spec.launch.hostfile is None:
        return None
    try:
        return read_text(Path(spec.launch.hostfile), errors="replace")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RequestError(
            f"{spec.launch.hostfile}: cannot read the hostfile: {why} ({spec.sources['hostfile']})."
        ) from None


def read_config_text(request: Request) -> str | None:
    """Read the config's text; a pipe has it only once."""
    if request.config is None or request.config_text is not None:
        return request.config_text
    return _read_config(Path(request.config)).text


def _read_config(path: Path | None, text: str | None = None) -> JobConfig:
    if path is None:
        return JobConfig()
    try:
        return parse_config(read_text(path) if text is None else text, str(path))
    except FileNotFoundError:
        raise RequestError(f"{path}: no such config. Name the job's YAML with --config FILE.") from None
    except Unreadable as error:
        raise RequestError(f"{error.where(str(path))}: cannot read the config: {error}.") from None
    except OSError as error:
        raise RequestError(f"{path}: cannot read the config: {error}.") from None


def _read_rank_table(spec: JobSpec, config_path: Path | None) -> tuple[JobSpec, str | None]:
    """Read the rank table that was asked for, or that a system gives to all its nodes; return its text with the job."""
    from mslaunch.ranktable.versions import read_table, validate

    asked, source = spec.launch.rank_table, spec.sources["rank_table"]
    cluster = detect(os.environ) if asked is None else None
    if cluster is not None:
        asked, source = cluster.rank_table, cluster.sources.get("rank_table", "")
    if asked is None:
        return spec, None
    choices = [Path(asked)]
    if config_path is not None and not source.startswith("-"):
        choices.insert(0, config_path.parent / asked)
    for choice in choices:
        if choice.is_file():
            text = _table_text(choice)
            errors = [finding.words(str(choice)) for finding in validate(text) if finding.severity == "error"]
            if errors:
                raise ConfigError(errors)
            return replace(spec, rank_table=read_table(text, str(choice))), text
    raise RequestError(f"{asked}: no such rank table ({source}). Leave it out and one is written for the run.")


def _table_text(path: Path) -> str:
    from mslaunch.ranktable.rules import SIZE_LIMIT

    try:
        return read_text(path, SIZE_LIMIT, errors="replace")
    except (OSError, Unreadable) as error:
        raise RankTableUnreadable(str(path), str(error)) from None
