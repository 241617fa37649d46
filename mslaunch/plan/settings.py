"""The launcher's own settings: what `launch:` may hold, and where each value came from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mslaunch.errors import ConfigError, MslaunchError, did_you_mean
from mslaunch.plan.config import Config, Count, Index, ScriptKeys, reason
from mslaunch.plan.environment import RANK_VARIABLES, RANKS_ONLY, VARIABLE, asked_by_variables
from mslaunch.plan.kubernetes_settings import KubernetesSettings
from mslaunch.plan.metric_settings import MetricEntry
from mslaunch.plan.program import COMMAND_LINE, split_words
from mslaunch.plan.program import SETTINGS as PROGRAM_SETTINGS
from mslaunch.plan.sync_settings import SyncSettings
from mslaunch.plan.tags import WHAT_A_TAG_IS, is_tag
from mslaunch.ranges import parse_ranges

V = TypeVar("V", dict[str, str], dict[str, str | None])


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


def _core_map(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError('write it as {"0": "0-9", "1": "10-19"}') from None
    if not isinstance(value, dict):
        return value
    joined = {key: ",".join(map(str, cores)) if isinstance(cores, list) else cores for key, cores in value.items()}
    return {str(key).removeprefix("device"): cores for key, cores in joined.items()}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def _line(value: Any) -> Any:
    if not isinstance(value, str):  # YAML takes 30:00 for 1800, and 0123 for 83
        raise ValueError("write it in quotes, or YAML takes it for a number")
    if not value or "\n" in value or "\r" in value:
        raise ValueError("one line of text is wanted")
    return value


def _folder(value: Any) -> Any:
    parts = str(value).split("/")
    if not isinstance(value, str) or not value or value.startswith("/") or ".." in parts or ":" in value:
        raise ValueError("name a folder of the project by its relative path, for example data/cache")
    return value.rstrip("/")


def _words(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _numbers(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value or min(value) < 0 or len(set(value)) < len(value):
        raise ValueError('name each number once, for example "0-3,6"')
    return value


def _nodes(value: Any) -> Any:
    """Read `4`, or `2:4` for at least two and at most four."""
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return tuple(value)
    fewest, colon, most = str(value).partition(":")
    if isinstance(value, bool) or not all(part.isascii() and part.isdigit() for part in (fewest, most or fewest)):
        raise ValueError("write a number, or two as 2:4")
    both = int(fewest[:7]), int((most if colon else fewest)[:7])
    if not 1 <= both[0] <= both[1] <= 65536:
        raise ValueError("write a number from 1 on, or two as 2:4, the smaller first")
    return both


def _variables(value: V) -> V:
    for name, text in value.items():
        if not VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable: use letters, digits and underscores only")
        if "\0" in (text or ""):
            raise ValueError(f"{name!r} cannot hold a NUL")
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError("text without a NUL is wanted")
    return value


def _tag(value: str) -> str:
    if not is_tag(value):
        raise ValueError(f"a tag is {WHAT_A_TAG_IS}")
    return value


def _url(value: str) -> str:
    scheme, colon, rest = value.partition("://")
    if scheme not in ("http", "https") or not colon or not rest.strip("/") or not value.isprintable() or " " in value:
        raise ValueError("write the whole address, for example https://chat.example.com/hook")
    return value


def _path(value: str) -> str:
    parts = value.encode("utf-8", "surrogateescape").split(b"/")
    if sum(map(len, parts)) + len(parts) > 4096 or max(map(len, parts)) > 255:
        raise ValueError("a path is 4,095 bytes long at most, and each name in it 255")
    return value


Numbers = Annotated[tuple[int, ...], AfterValidator(_numbers)]
Devices = Annotated[Numbers, BeforeValidator(_ranges)]
Tail = Annotated[Literal["all", "none"] | Numbers, BeforeValidator(_tail)]
Codes = Annotated[tuple[int, ...], BeforeValidator(_ranges)]
Variables = Annotated[dict[str, str | None], AfterValidator(_variables)]
HostVariables = Annotated[dict[str, str], AfterValidator(_variables)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Wait = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Line = Annotated[str, AfterValidator(_text), BeforeValidator(_line)]
Folder = Annotated[str, AfterValidator(_text), BeforeValidator(_folder)]
Text = Annotated[str, AfterValidator(_text)]
Tag = Annotated[str, AfterValidator(_tag)]
Url = Annotated[Text, AfterValidator(_url)]
PathText = Annotated[Text, AfterValidator(_path)]


class Flag:
    """How a setting is given on the command line: its names, the type of its value and what stands for it in --help."""

    def __init__(self, *names: str, kind: type = str, metavar: str | None = None, help: str | None = None) -> None:
        self.names = names
        self.kind = kind
        self.metavar = metavar
        self.help = help
        """What --help says, where it is not the setting's own description."""


class HostEntry(BaseModel):
    """One of `launch.hosts`."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    address: Text = Field(description="Name or address, as for ssh.")
    devices: Devices | None = Field(None, description='Devices to use there, for example "0-7"; by default device 0.')
    user: Text | None = Field(None, description="Login name there.")
    port: Port | None = Field(None, description="Port of its SSH server.")
    python: PathText | None = Field(None, description="The Python that runs the ranks there.")
    env: HostVariables = Field(default_factory=dict, description="Variables for the ranks there.")


class LaunchSettings(BaseModel):
    """Everything that stands under `launch:` in a job's YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    workers: Annotated[Annotated[Count, Field(le=65536)] | None, Flag("--workers", "--worker_num", "-n", kind=int)] = (
        Field(None, description="How many ranks to start.")
    )
    script: Annotated[PathText | None, Flag("--script", metavar="FILE")] = Field(
        None, description="The script; by default train.py (infer: infer.py) beside the config, then here."
    )
    module: Text | None = Field(None, description="A Python module instead of a script, as `python -m` takes it.")
    command: Annotated[tuple[Text, ...] | None, BeforeValidator(split_words)] = Field(
        None, min_length=1, description="Any program instead of a script, with its arguments: [bash, run.sh]."
    )
    devices: Annotated[Devices | None, Flag("--devices", metavar="LIST")] = Field(
        None, description='Devices to use, for example "0-3,6".'
    )
    share_devices: Annotated[bool, Flag("--share-devices", kind=bool)] = Field(
        False, description="Use NPUs and GPUs that other runs use."
    )
    method: Annotated[Text, Flag("--method", metavar="NAME")] = Field(
        "dynamic", description="How the ranks are started; by default by mslaunch itself."
    )
    hosts: Annotated[Text | tuple[HostEntry, ...] | None, Flag("--hosts", metavar="LIST")] = Field(
        None, description='Hosts and their devices, for example "n1:8,n2:[0-3]"; in the YAML also a list.'
    )
    hostfile: Annotated[PathText | None, Flag("--hostfile", metavar="FILE")] = Field(
        None, description="File that names the hosts, one a line: n1 slots=8."
    )
    accept_new_host_keys: Annotated[bool, Flag("--accept-new-host-keys", kind=bool)] = Field(
        False, description="Trust hosts whose SSH key is not known yet."
    )
    transport: Annotated[Text | None, Flag("--transport", metavar="NAME")] = Field(
        None,
        description="How the hosts are reached; by default as the hosts and the place of the launch suggest.",
    )
    nodes: Annotated[Annotated[Count, Field(le=65536)] | None, Flag("--nodes", "-N", kind=int)] = Field(
        None, description="Slurm, Kubernetes: how many nodes."
    )
    partition: Annotated[Line | None, Flag("--partition", "-p", metavar="NAME")] = Field(
        None, description="Slurm: the partition."
    )
    time: Annotated[Line | None, Flag("--time", "-t", metavar="LIMIT")] = Field(
        None, description="Slurm: the time limit, for example 1:00:00."
    )
    account: Annotated[Line | None, Flag("--account", "-A", metavar="NAME")] = Field(
        None, description="Slurm: the account."
    )
    requeue: Annotated[bool, Flag("--requeue/--no-requeue", kind=bool)] = Field(
        False, description="Slurm: a preempted job is queued again, and resumes from its newest complete checkpoint."
    )
    sbatch_args: Annotated[
        Annotated[tuple[Line, ...], BeforeValidator(_words)], Flag("--sbatch-arg", kind=list, metavar="OPTION")
    ] = Field((), description="Slurm: further options of sbatch, for example --gres=gpu:8.")
    image: Annotated[Line | None, Flag("--image", metavar="NAME")] = Field(
        None, description="Kubernetes: image of the pods; outweighs launch.kubernetes.image."
    )
    namespace: Annotated[Line | None, Flag("--namespace", metavar="NAME")] = Field(
        None, description="Kubernetes: the namespace; outweighs launch.kubernetes.namespace."
    )
    volcano: Annotated[bool | None, Flag("--volcano", kind=bool)] = Field(
        None, description="Kubernetes: a Job of Volcano, whose pods are scheduled together."
    )
    kubernetes: KubernetesSettings = Field(
        default_factory=KubernetesSettings, description="Kubernetes: the pods of a job, and where they run."
    )
    nnodes: Annotated[Annotated[tuple[int, int], BeforeValidator(_nodes)] | None, Flag("--nnodes", metavar="N")] = (
        Field(None, description="Nodes that run this same command, or at least and at most so many: 4, 2:4.")
    )
    node_rank: Annotated[Index | None, Flag("--node-rank", kind=int)] = Field(
        None, description="Which of these nodes this is; 0 launches. By default by order of arrival."
    )
    master: Annotated[Line | None, Flag("--master", metavar="HOST:PORT")] = Field(
        None, description="Where the launcher is that the other nodes join; the port is 29400 by default."
    )
    workers_per_node: Annotated[
        Annotated[Count, Field(le=65536)] | None, Flag("--workers-per-node", kind=int, metavar="N")
    ] = Field(None, description="Ranks of each node that joins; by default one for each of its devices.")
    launcher_only: Annotated[bool, Flag("--launcher-only", kind=bool)] = Field(
        False, description="Launch for the nodes that join, and run no rank here."
    )
    join_timeout: Annotated[Wait, Flag("--join-timeout", kind=float, metavar="SECONDS")] = Field(
        600.0, description="Seconds to wait for the launcher, and for the nodes that join it."
    )
    secret_file: Annotated[PathText | None, Flag("--secret-file", metavar="FILE")] = Field(
        None, description="File with the secret that all nodes know; the variable MSLAUNCH_SECRET holds it as well."
    )
    rank_table: Annotated[PathText | None, Flag("--rank-table", "--rank_table_file", metavar="FILE")] = Field(
        None, description="Rank table to use; exported as RANK_TABLE_FILE."
    )
    env: Annotated[
        Variables,
        Flag(
            "--env",
            kind=list,
            metavar="K=V",
            help="Variable for every rank, K=V; K alone takes it from here and writes it nowhere.",
        ),
    ] = Field(
        default_factory=dict,
        description="Variables for every rank; an empty value takes it from the environment and writes it nowhere.",
    )
    master_port: Annotated[Port | None, Flag("--master-port", "--master_port", kind=int)] = Field(
        None, description="Port of MindSpore's scheduler; by default a free one."
    )
    bind_cores: Annotated[bool, Flag("--bind-cores/--no-bind-cores", kind=bool)] = Field(
        False, description="Give every rank an equal share of the cores, and set OMP_NUM_THREADS."
    )
    numa: Annotated[bool, Flag("--numa/--no-numa", kind=bool)] = Field(
        False, description="Bind every rank to the cores and the memory of its device's NUMA node."
    )
    core_map: Annotated[dict[Index, Devices] | None, BeforeValidator(_core_map), Flag("--core-map", metavar="JSON")] = (
        Field(None, description='Cores of each device or rank, for example {"0": "0-9", "1": "10-19"}.')
    )
    tail: Annotated[Tail, Flag("--tail", metavar="RANKS")] = Field(
        (0,), description='Ranks whose output is shown, for example "0,2-3", all or none.'
    )
    stdin: Annotated[Literal["auto", "none"] | Index, BeforeValidator(_number), Flag("--stdin", metavar="RANK")] = (
        Field(
            "auto", description="Rank that reads what is typed or piped here; by default the only one. none: no rank."
        )
    )
    runs_dir: Annotated[PathText, Flag("--runs-dir", "--log_dir", metavar="DIR")] = Field(
        "mslaunch-runs", description="Folder that holds the runs."
    )
    run_id: Annotated[str | None, Flag("--run-id", metavar="NAME")] = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Name of the run; default: date, time and a random suffix.",
    )
    cwd: Annotated[Literal["rank", "submit"], Flag("--cwd", metavar="rank|submit")] = Field(
        "rank", description="Working directory of the ranks: a folder of their own, or the one of the launch (submit)."
    )
    shared: Annotated[
        Annotated[tuple[Folder, ...], BeforeValidator(_words)], Flag("--shared", kind=list, metavar="DIR")
    ] = Field(
        (), description="Folder of the project that ranks write to, for example checkpoint; others they do not change."
    )
    config_arg: Text | None = Field(
        "--config_path",
        description="The argument that names its configuration to the script; by default only to one that takes it.",
    )
    python: PathText | None = Field(None, description="The Python that runs the ranks; by default mslaunch's own.")
    setup: Text | None = Field(None, description="Shell commands run once per host; the ranks get their environment.")
    sync: SyncSettings | None = Field(
        None, description="Data to fetch on each host before its ranks start, and to send when they have ended."
    )
    metrics: bool | tuple[MetricEntry, ...] = Field(
        True, description="Metrics to read from the ranks' output besides the known ones; false: measure nothing."
    )
    grace: Seconds = Field(10.0, description="Seconds between asking a rank to stop and ending it.")
    timeout: Annotated[Wait | None, Flag("--timeout", kind=float, metavar="SECONDS")] = Field(
        None, description="Seconds that the whole job may take."
    )
    stall_timeout: Annotated[Wait | None, Flag("--stall-timeout", kind=float, metavar="SECONDS")] = Field(
        None, description="Seconds without output from any rank that count as a hang."
    )
    on_stall: Literal["stop", "report"] = Field("stop", description="What a hang does: end the job, or be reported.")
    on_nan: Literal["report", "stop"] = Field(
        "report", description="What a loss that is NaN or infinite does: be reported, or end the job."
    )
    exit_skew: Wait = Field(
        300.0, description="Seconds that ranks may stay silent and idle after one has ended with code 0."
    )
    require_init: bool = Field(
        False, description="Whether a job fails whose ranks use MindSpore and never call init(): each trains alone."
    )
    lost_after: Wait = Field(10.0, description="Seconds of silence after which an agent counts its launcher as lost.")
    report: bool = Field(False, description="Write report.html into the run's folder when the run has ended.")
    max_restarts: Annotated[Annotated[int, Field(ge=0)], Flag("--max-restarts", kind=int, metavar="N")] = Field(
        0, description="How often a failed job is started again."
    )
    min_workers: Count | None = Field(
        None, description="With max_restarts: go on with the hosts that are left, as long as they have so many ranks."
    )
    backoff: Seconds = Field(5.0, description="Seconds before a restart; doubles each time, up to a minute.")
    no_restart_codes: Codes = Field((), description="Exit codes after which no restart is tried.")
    checkpoints: PathText | None = Field(
        None, description="Folder of a rank's checkpoints, relative to its own; {rank} stands for its number."
    )
    tags: Annotated[Annotated[tuple[Tag, ...], BeforeValidator(_words)], Flag("--tag", kind=list, metavar="NAME")] = (
        Field((), description="Tag of the run, by which `mslaunch ps --tag` finds it.")
    )
    on_end: Text | None = Field(
        None, description="Shell command for the end of the run; its record, as JSON, is the standard input."
    )
    webhook: Url | None = Field(None, description="URL that the end of the run is posted to, as JSON.")


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings and where each came from."""

    values: LaunchSettings
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What a person should know about them."""

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
    _one_program(config.launch, raw, sources, findings, lambda name: config.where("launch", name))
    for name, value in config.launch.items():
        if name not in LaunchSettings.model_fields:
            suggestion = did_you_mean(name, LaunchSettings.model_fields)
            findings.append(f"{config.where('launch', name)}: launch has no key {name!r}{suggestion}")
            continue
        raw[name] = value
        sources[name] = f"{config.where('launch', name)} (launch.{name})"
    asked = asked_by_variables(environment)
    exported = {name: asked.get(_variable(name)) for name in LaunchSettings.model_fields}
    exported = {name: value for name, value in exported.items() if value and name not in NOT_FROM_ENVIRONMENT}
    _one_program(exported, raw, sources, findings, _variable)
    for name, value in exported.items():
        raw[name] = _split(value) if value is not None and name in _LISTS else value
        sources[name] = _variable(name)
    _one_program(assigned or {}, raw, sources, findings, lambda name: f"--set launch.{name}")
    for name, value in (assigned or {}).items():
        if name in LaunchSettings.model_fields:
            raw[name], sources[name] = value, f"--set launch.{name}"
        else:
            suggestion = did_you_mean(name, LaunchSettings.model_fields)
            findings.append(f"--set launch.{name}: launch has no key {name!r}{suggestion}")
    _one_program(flags, raw, sources, findings, _flag)
    for name, value in flags.items():
        if name == "env":
            raw["env"] = {**(raw.get("env") or {}), **value}
            sources["env"] = f"--env, {sources['env']}" if sources["env"] != "default" else "--env"
        elif name in LaunchSettings.model_fields:
            raw[name], sources[name] = value, _flag(name)
        else:
            findings.append(f"{name}: there is no such setting{did_you_mean(name, LaunchSettings.model_fields)}")
    values = _validate(raw, sources, findings)
    return Settings(values, sources, tuple(_unknown_variables(asked)))


def _split(text: str) -> Any:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed is a letter
        return text


def _unknown_variables(asked: Mapping[str, str]) -> Iterator[str]:
    """Tell of variables that are none of ours: a misspelt one would change nothing without a word."""
    known = [name.upper() for name in LaunchSettings.model_fields if name not in NOT_FROM_ENVIRONMENT]
    for name in sorted(asked):
        key = name.removeprefix("MSLAUNCH_")
        if key not in known and name not in (*RANK_VARIABLES, JOIN_SECRET) and not name.startswith(RANKS_ONLY):
            why = NOT_FROM_ENVIRONMENT.get(key.lower())
            near = did_you_mean(key, known).replace("'", "'MSLAUNCH_", 1)
            yield (f"{name} is ignored: {why}" if why else f"{name} is ignored: there is no such setting{near}")


_TYPE_NAMES = ("tuple[", "literal[", "function-")  # what pydantic adds to a place to tell members of a union apart
_LISTS = ("sbatch_args", "shared", "tags")
JOIN_SECRET = "MSLAUNCH_SECRET"
"""Not a setting: its value is read where a node joins, and kept nowhere."""
NOT_FROM_ENVIRONMENT = {
    "env": "export the variables themselves, and name them with --env K",
    "sync": "write launch.sync into the YAML",
    "kubernetes": "write launch.kubernetes into the YAML",
}
"""Settings that no variable gives, and why."""


def _one_program(
    layer: Mapping[str, Any],
    raw: dict[str, Any],
    sources: dict[str, str],
    findings: list[str],
    where: Callable[[str], str],
) -> None:
    """Whoever names a program replaces what was named with less weight, whichever way it was named."""
    named = [name for name in PROGRAM_SETTINGS if layer.get(name) is not None]
    if len(named) > 1:
        findings.append(f"{where(named[0])} and {where(named[1])} both name the program. Keep one.")
    for name in PROGRAM_SETTINGS if named else ():
        raw.pop(name, None)
        sources[name] = "default"


def _variable(name: str) -> str:
    return f"MSLAUNCH_{name.upper()}"


def flag_of(name: str) -> Flag | None:
    """Return how a setting is given on the command line, if it is."""
    return next((found for found in LaunchSettings.model_fields[name].metadata if isinstance(found, Flag)), None)


def _flag(name: str) -> str:
    if name == "command":
        return COMMAND_LINE
    flag = flag_of(name)
    return flag.names[0].partition("/")[0] if flag else "--" + name.replace("_", "-")


def _validate(raw: dict[str, Any], sources: Mapping[str, str], findings: list[str]) -> LaunchSettings:
    try:
        values = LaunchSettings.model_validate(raw)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0])
            key = ".".join(str(part) for part in item["loc"] if not str(part).startswith(_TYPE_NAMES))
            where = sources[name].split(" (")[0]
            label = "" if where.startswith("--") else f"{key}: "
            has_key = name == "sync" and "@" in str(item["input"])
            got = "" if "env" in item["loc"] or has_key else f", got {item['input']!r}"  # values may be secrets
            findings.append(f"{where}: {label}{reason(item)}{got}.")
        raise ConfigError(list(dict.fromkeys(findings))) from None
    if findings:
        raise ConfigError(findings)
    return values


def schema() -> dict[str, Any]:
    """The JSON Schema of a job's YAML, for editors."""
    from mslaunch.plan.methods import METHODS

    result = ScriptKeys.model_json_schema()
    launch = LaunchSettings.model_json_schema()
    launch["properties"]["method"]["examples"] = list(METHODS)  # not an enum: plug-ins add to them
    result.setdefault("$defs", {}).update(launch.pop("$defs", {}))
    result["properties"]["launch"] = launch
    result["title"] = "mslaunch job"
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return result
