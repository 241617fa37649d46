"""The launcher's own settings: what `launch:` may hold, and where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mslaunch.errors import ConfigError, MslaunchError, did_you_mean
from mslaunch.plan.config import Config, Count, ScriptKeys, reason
from mslaunch.plan.ranges import parse_ranges


def _ranges(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError('write for example "0-3,6"')
    if isinstance(value, (str, int)):
        try:
            return parse_ranges(str(value), "list")
        except MslaunchError as error:
            raise ValueError(str(error).removeprefix("list: ").rstrip(".")) from None
    return value


def _tail(value: Any) -> Any:
    return value if value in ("all", "none") else _ranges(value)


def _line(value: Any) -> Any:
    if not isinstance(value, str):  # YAML takes 30:00 for 1800, and 0123 for 83
        raise ValueError("write it in quotes, or YAML takes it for a number")
    if not value or "\n" in value or "\r" in value:
        raise ValueError("one line of text is wanted")
    return value


def _words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _numbers(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value or min(value) < 0 or len(set(value)) < len(value):
        raise ValueError('name each number once, for example "0-3,6"')
    return value


def _variables(value: dict[str, str | None]) -> dict[str, str | None]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + (text or ""):
            raise ValueError(f"{name!r} cannot be a variable: names hold no '=', and neither name nor value a NUL")
    return value


Numbers = Annotated[tuple[int, ...], AfterValidator(_numbers)]
Devices = Annotated[Numbers, BeforeValidator(_ranges)]
Tail = Annotated[Literal["all", "none"] | Numbers, BeforeValidator(_tail)]
Codes = Annotated[tuple[int, ...], BeforeValidator(_ranges)]
Variables = Annotated[dict[str, str | None], AfterValidator(_variables)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0)]
Wait = Annotated[float, Field(gt=0)]
Line = Annotated[str, BeforeValidator(_line)]


class HostEntry(BaseModel):
    """One of `launch.hosts`."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    address: str = Field(description="Name or address, as for ssh.")
    devices: Devices | None = Field(None, description='Devices to use there, for example "0-7"; by default device 0.')
    user: str | None = Field(None, description="Login name there.")
    port: Port | None = Field(None, description="Port of its SSH server.")
    python: str | None = Field(None, description="The Python that runs the ranks there.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables for the ranks there.")


class LaunchSettings(BaseModel):
    """Everything that stands under `launch:` in a job's YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    workers: Annotated[Count, Field(le=65536)] | None = Field(None, description="How many ranks to start.")
    script: str | None = Field(None, description="The script; by default train.py (infer: infer.py) beside the config.")
    devices: Devices | None = Field(None, description='Devices to use, for example "0-3,6".')
    method: Literal["dynamic", "msrun", "mpirun", "rank-table"] = Field(
        "dynamic", description="How the ranks are started: dynamic (by mslaunch itself), msrun, mpirun or rank-table."
    )
    hosts: str | tuple[HostEntry, ...] | None = Field(
        None, description='Hosts and their devices, for example "n1:8,n2:[0-3]"; in the YAML also a list.'
    )
    hostfile: str | None = Field(None, description="File that names the hosts, one a line: n1 slots=8.")
    accept_new_host_keys: bool = Field(False, description="Trust hosts whose SSH key is not known yet.")
    transport: Literal["local", "ssh", "slurm"] | None = Field(
        None, description="local, ssh or slurm; by default ssh with hosts, slurm inside a Slurm allocation, else local."
    )
    nodes: Annotated[Count, Field(le=65536)] | None = Field(None, description="Slurm: how many nodes.")
    partition: Line | None = Field(None, description="Slurm: the partition.")
    time: Line | None = Field(None, description="Slurm: the time limit, for example 1:00:00.")
    account: Line | None = Field(None, description="Slurm: the account.")
    requeue: bool = Field(
        False, description="Slurm: a preempted job is queued again, and resumes from its newest complete checkpoint."
    )
    sbatch_args: Annotated[tuple[Line, ...], BeforeValidator(_words)] = Field(
        (), description="Slurm: further options of sbatch, for example --gres=gpu:8."
    )
    rank_table: str | None = Field(None, description="Rank table to use; exported as RANK_TABLE_FILE.")
    env: Variables = Field(
        default_factory=dict,
        description="Variables for every rank; an empty value takes it from the environment and writes it nowhere.",
    )
    master_port: Port | None = Field(None, description="Port of MindSpore's scheduler; by default a free one.")
    bind_cores: bool = Field(False, description="Give every rank an equal share of the cores, and set OMP_NUM_THREADS.")
    tail: Tail = Field((0,), description='Ranks whose output is shown, for example "0,2-3", all or none.')
    runs_dir: str = Field("mslaunch-runs", description="Folder that holds the runs.")
    run_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Name of the run; by default date, time and chance.",
    )
    cwd: Literal["rank", "submit"] = Field(
        "rank", description="Working directory of the ranks: a folder of their own, or the one of the launch."
    )
    config_arg: str | None = Field(
        "--config_path", description="The script's argument that names its configuration; null to leave it out."
    )
    python: str | None = Field(None, description="The Python that runs the ranks; by default mslaunch's own.")
    setup: str | None = Field(None, description="Shell commands run once per host; the ranks get their environment.")
    grace: Seconds = Field(10.0, description="Seconds between asking a rank to stop and ending it.")
    timeout: Wait | None = Field(None, description="Seconds that the whole job may take.")
    stall_timeout: Wait | None = Field(None, description="Seconds without output from any rank that count as a hang.")
    on_stall: Literal["stop", "report"] = Field("stop", description="What a hang does: end the job, or be reported.")
    exit_skew: Wait = Field(300.0, description="Seconds that ranks may go on after one has ended with code 0.")
    lost_after: Wait = Field(10.0, description="Seconds of silence after which an agent counts its launcher as lost.")
    max_restarts: Annotated[int, Field(ge=0)] = Field(0, description="How often a failed job is started again.")
    min_workers: Count | None = Field(
        None, description="With max_restarts: go on with the hosts that are left, as long as they have so many ranks."
    )
    backoff: Seconds = Field(5.0, description="Seconds before a restart; doubles each time, up to a minute.")
    no_restart_codes: Codes = Field((), description="Exit codes after which no restart is tried.")
    checkpoints: str | None = Field(
        None, description="Folder of a rank's checkpoints, relative to its own; {rank} stands for its number."
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings and where each came from."""

    values: LaunchSettings
    sources: Mapping[str, str]

    def source(self, name: str) -> str:
        return self.sources[name]


def resolve(
    flags: Mapping[str, Any], environment: Mapping[str, str], config: Config, assigned: Mapping[str, Any] | None = None
) -> Settings:
    """Merge flags over MSLAUNCH_* variables over the YAML over defaults; report every wrong value at once.

    `assigned` is what `--set launch.key=value` gave; a flag of its own outweighs it.
    """
    raw: dict[str, Any] = {}
    sources = dict.fromkeys(LaunchSettings.model_fields, "default")
    findings: list[str] = []
    for name, value in config.launch.items():
        if name not in LaunchSettings.model_fields:
            suggestion = did_you_mean(name, LaunchSettings.model_fields)
            findings.append(f"{config.where('launch', name)}: launch has no key {name!r}{suggestion}")
            continue
        raw[name] = value
        sources[name] = f"{config.where('launch', name)} (launch.{name})"
    for name in LaunchSettings.model_fields:
        variable = f"MSLAUNCH_{name.upper()}"
        if environment.get(variable) and name not in _NOT_FROM_ENVIRONMENT:
            raw[name], sources[name] = environment[variable], variable
    for name, value in (assigned or {}).items():
        if name in LaunchSettings.model_fields:
            raw[name], sources[name] = value, f"--set launch.{name}"
        else:
            suggestion = did_you_mean(name, LaunchSettings.model_fields)
            findings.append(f"--set launch.{name}: launch has no key {name!r}{suggestion}")
    for name, value in flags.items():
        if name == "env":
            raw["env"] = {**(raw.get("env") or {}), **value}
            sources["env"] = f"--env, {sources['env']}" if sources["env"] != "default" else "--env"
        else:
            raw[name], sources[name] = value, _flag(name)
    values = _validate(raw, sources, findings)
    return Settings(values, sources)


_TYPE_NAMES = ("tuple[", "literal[", "function-")  # what pydantic adds to a place to tell members of a union apart
_SINGULAR = {"sbatch_args": "sbatch_arg"}  # one at a time
_NOT_FROM_ENVIRONMENT = {"env", "run_id", "cwd"}  # what a rank is told is not what a launch inside it is asked


def _flag(name: str) -> str:
    return "--" + _SINGULAR.get(name, name).replace("_", "-")


def _validate(raw: dict[str, Any], sources: Mapping[str, str], findings: list[str]) -> LaunchSettings:
    try:
        values = LaunchSettings.model_validate(raw)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0])
            key = ".".join(str(part) for part in item["loc"] if not str(part).startswith(_TYPE_NAMES))
            where = sources[name].split(" (")[0]
            label = "" if where.startswith("--") else f"{key}: "
            findings.append(f"{where}: {label}{reason(item)}, got {item['input']!r}.")
        raise ConfigError(list(dict.fromkeys(findings))) from None
    if findings:
        raise ConfigError(findings)
    return values


def schema() -> dict[str, Any]:
    """The JSON Schema of a job's YAML, for editors."""
    result = ScriptKeys.model_json_schema()
    launch = LaunchSettings.model_json_schema()
    result.setdefault("$defs", {}).update(launch.pop("$defs", {}))
    result["properties"]["launch"] = launch
    result["title"] = "mslaunch job"
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return result
