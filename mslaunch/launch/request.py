"""What was asked for: a request, and the job that it describes once its files have been read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import ConfigError, RankTableMissing, RankTableUnreadable, RequestError
from mslaunch.hosts import Host
from mslaunch.launch.program import FoundProgram, find_program, with_typed_python
from mslaunch.plan.methods import find_method
from mslaunch.plan.model import Checkpoints, File
from mslaunch.plan.spec import TRAIN_SCRIPT, JobSpec, named_hosts
from mslaunch.ranktable.findings import SIZE_LIMIT
from mslaunch.ranktable.rules import validate
from mslaunch.ranktable.versions import read_table
from mslaunch.settings.program import SETTINGS as PROGRAM_SETTINGS
from mslaunch.settings.program import settings_of
from mslaunch.settings.resolve import Settings, resolve
from mslaunch.settings.yaml_config import Config, override, parse_config, split_assignments
from mslaunch.transports.join.cluster_environment import find as find_system


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
    default_workers: int | None = None
    choose_checkpoints: Callable[[int, str], Checkpoints] | None = None
    """Says which files a job of so many ranks, in this run's folder, is given."""
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

    @property
    def program(self) -> FoundProgram:
        found = find_program(self.spec, self.config_path)
        return replace(found, notes=(*self.request.notes, *found.notes))

    def with_checkpoints(self, workers: int, run_dir: str) -> JobSpec:
        """The job with the checkpoint files that it is given, where it is given some."""
        choose = self.request.choose_checkpoints
        return self.spec if choose is None else replace(self.spec, checkpoints=choose(workers, run_dir))


def read_job(request: Request) -> ReadJob:
    """Read and check everything that a request names on this machine."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise RequestError("the current folder has been deleted. Change into one that exists.") from None
    config_path = Path(request.config) if request.config else None
    own, assigned = split_assignments(request.assignments)
    config = override(_read_config(config_path, request.config_text), own)
    settings = resolve(request.flags, os.environ, config, assigned)
    if named := _named_by_args(request, settings):
        request = named
        settings = resolve(request.flags, os.environ, config, assigned)
    spec = JobSpec(
        settings,
        config,
        find_method(settings),
        request.script_args,
        default_script=request.default_script,
        default_workers=request.default_workers,
    )
    spec = with_typed_python(spec)
    text = None
    table = _rank_table(spec, config_path)
    if table is not None:
        name, text = table
        errors = [finding for finding in validate(text) if finding.severity == "error"]
        if errors:
            raise ConfigError([finding.words(name) for finding in errors])
        spec = replace(spec, rank_table=read_table(text, name))
    return ReadJob(request, spec, config_path, text, named_hosts(spec, _hostfile(spec)))


def _named_by_args(request: Request, settings: Settings) -> Request | None:
    """The request with its first argument as the program, where nothing else names one."""
    args = request.script_args
    named = any(getattr(settings.values, name) is not None for name in PROGRAM_SETTINGS)
    if named or not request.args_may_name or not args or args[0].startswith("-"):
        return None
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
            f"{spec.launch.hostfile}: cannot read the hostfile: {why} ({spec.source('hostfile')})."
        ) from None


def read_config_text(request: Request) -> str | None:
    """Read the config's text; a pipe has it only once."""
    if request.config is None or request.config_text is not None:
        return request.config_text
    return _read_config(Path(request.config)).text


def _read_config(path: Path | None, text: str | None = None) -> Config:
    if path is None:
        return Config()
    try:
        return parse_config(read_text(path) if text is None else text, str(path))
    except FileNotFoundError:
        raise RequestError(f"{path}: no such config. Name the job's YAML with --config FILE.") from None
    except Unreadable as error:
        raise RequestError(f"{error.where(str(path))}: cannot read the config: {error}.") from None
    except OSError as error:
        raise RequestError(f"{path}: cannot read the config: {error}.") from None


def _rank_table(spec: JobSpec, config_path: Path | None) -> tuple[str, str] | None:
    """Return the name and text of the rank table that was asked for, or that a system gives to all its nodes."""
    asked, source = spec.launch.rank_table, spec.source("rank_table")
    if asked is None and spec.method.needs_rank_table:
        found = find_system(os.environ)
        asked, source = (found.rank_table, found.sources.get("rank table", "")) if found else (None, "")
    if asked is None:
        return None
    choices = [Path(asked)]
    if config_path is not None and not source.startswith("-"):
        choices.insert(0, config_path.parent / asked)
    for choice in choices:
        if choice.is_file():
            return str(choice), _table_text(choice)
    raise RankTableMissing(asked, source)


def _table_text(path: Path) -> str:
    try:
        return read_text(path, SIZE_LIMIT, errors="replace")
    except (OSError, Unreadable) as error:
        raise RankTableUnreadable(str(path), str(error)) from None
