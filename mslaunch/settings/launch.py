"""Everything that `launch:` may hold: each setting with its kind, its flag and what it does."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.settings.program import split_words
from mslaunch.settings.sync_settings import SyncSettings
from mslaunch.settings.value_types import (
    Codes,
    Devices,
    Folders,
    HostVariables,
    Line,
    Lines,
    Nodes,
    NumberMap,
    PathText,
    Port,
    RankOrNone,
    Seconds,
    Tags,
    Tail,
    Text,
    Url,
    Variables,
    Wait,
    split_hosts,
)
from mslaunch.settings.yaml_config import Count, Index
from mslaunch.shared import layout
from mslaunch.shared.metric_values import RESERVED, is_name

LONGEST_REGEX = 1000


def _name(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"no metric is called {name}: rows of metrics.jsonl have a key of this name")
    if not is_name(name):
        raise ValueError("begin with a letter and use letters, digits and _ . / - only, 64 at most")
    return name


def _regex(regex: str) -> str:
    if len(regex) > LONGEST_REGEX:
        raise ValueError(f"at most {LONGEST_REGEX} characters are taken")
    try:
        compiled = re.compile(regex)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if not compiled.groups:
        raise ValueError(r"put the number into a group, for example 'acc: ([\d.]+)'")
    if compiled.search(""):
        raise ValueError("it matches an empty line, so it would match every line")
    return regex


class MetricEntry(BaseModel):
    """One of `launch.metrics`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_name)] = Field(description="What the metric is called.")
    regex: Annotated[str, AfterValidator(_regex)] = Field(
        description="Regular expression of Python's re, searched in each line; its first group is the number."
    )


M = TypeVar("M")


class Flag:
    """How a setting is given on the command line: its names, the type of its value and what stands for it in --help."""

    def __init__(self, *names: str, kind: type = str, metavar: str | None = None, help: str = "") -> None:
        self.names = names
        self.kind = kind
        self.metavar = metavar
        self.help = help
        """What --help says, where it is not the setting's own description."""

    def with_help(self, help: str) -> Flag:
        return Flag(*self.names, kind=self.kind, metavar=self.metavar, help=help)


@dataclass(frozen=True, slots=True)
class Variable:
    """How MSLAUNCH_<NAME> gives a setting, where that is not by its value alone."""

    is_list: bool = False
    """Its text is several words, quoted as in a shell."""
    ignored: str = ""
    """It is not read; the sentence says what to do instead."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the documentation adds to a setting's description."""

    default: str = ""
    """What applies where the setting has no value."""
    see: str = ""
    """The page that explains it, or a part of its own page."""


def _no_link(name: str | None) -> str | None:
    if name == layout.LATEST:
        raise ValueError("latest is what the newest run is called; give another name")
    return name


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

    workers: Annotated[
        Annotated[Count, Field(le=65536)] | None,
        Flag("--workers", "--worker_num", "-n", kind=int),
        Reference(default="device_num, devices, rank table, else all devices, else 1"),
    ] = Field(None, description="How many ranks to start.")
    script: Annotated[
        PathText | None,
        Flag("--script", metavar="FILE"),
        Reference(default="train.py beside the YAML, then here", see="checkpoints.md#infer"),
    ] = Field(
        None,
        description="The script, relative to the YAML's folder, then to the current one; infer looks for infer.py "
        "first.",
    )
    module: Text | None = Field(
        None, description="A Python module instead of a script, as `python -m` takes it: pkg.train."
    )
    command: Annotated[tuple[Text, ...] | None, BeforeValidator(split_words), Reference(see="coming-from.md")] = Field(
        None,
        min_length=1,
        description='Any program instead of a script, with its arguments: `[bash, run.sh, "1"]`, or one line.',
    )
    devices: Annotated[Devices | None, Flag("--devices", metavar="LIST"), Reference(default="the first ones")] = Field(
        None, description='Devices to use, for example "0-3,6".'
    )
    share_devices: Annotated[bool, Flag("--share-devices", kind=bool)] = Field(
        False, description="Use NPUs and GPUs that other runs use; CPU runs always share."
    )
    method: Annotated[Text, Flag("--method", metavar="NAME"), Reference(see="methods.md")] = Field(
        "dynamic", description="How the ranks are started; dynamic: by mslaunch itself."
    )
    allow_launcher: Annotated[
        bool, Flag("--allow-launcher", kind=bool), Reference(see="coming-from.md#programs-that-are-launchers")
    ] = Field(False, description="Start a program that is a launcher itself, such as msrun, in every rank.")
    hosts: Annotated[
        Text | Annotated[tuple[HostEntry, ...], BeforeValidator(split_hosts)] | None,
        Flag("--hosts", metavar="LIST"),
        Reference(default="this machine", see="hosts.md"),
    ] = Field(
        None,
        description='Hosts and their devices, for example "n1:8,n2:[0-3]"; in the YAML also a list of address, '
        "devices, user, port, python, env.",
    )
    hostfile: Annotated[PathText | None, Flag("--hostfile", metavar="FILE")] = Field(
        None, description="File that names the hosts, one per line: n1 slots=8."
    )
    accept_new_host_keys: Annotated[bool, Flag("--accept-new-host-keys", kind=bool)] = Field(
        False, description="Trust hosts whose SSH key is not known yet."
    )
    transport: Annotated[
        Text | None,
        Flag("--transport", metavar="NAME"),
        Reference(default="ssh with hosts, slurm inside an allocation, else local", see="transports.md"),
    ] = Field(None, description="How the hosts are reached.")
    nodes: Annotated[
        Annotated[Count, Field(le=65536)] | None,
        Flag("--nodes", "-N", kind=int),
        Reference(default="1; inside an allocation, all"),
    ] = Field(None, description="Slurm, Kubernetes: how many nodes.")
    partition: Annotated[Line | None, Flag("--partition", "-p", metavar="NAME"), Reference(default="Slurm's")] = Field(
        None, description="Slurm: the partition."
    )
    time: Annotated[Line | None, Flag("--time", "-t", metavar="LIMIT"), Reference(default="Slurm's")] = Field(
        None, description="Slurm: the time limit, for example 1:00:00."
    )
    account: Annotated[Line | None, Flag("--account", "-A", metavar="NAME"), Reference(default="Slurm's")] = Field(
        None, description="Slurm: the account."
    )
    requeue: Annotated[bool, Flag("--requeue/--no-requeue", kind=bool)] = Field(
        False, description="Slurm: queue a preempted job again; it resumes from its newest complete checkpoint."
    )
    sbatch_args: Annotated[Lines, Flag("--sbatch-arg", kind=list, metavar="OPTION"), Variable(is_list=True)] = Field(
        (), description="Slurm: further options of sbatch, for example --gres=gpu:8."
    )
    image: Annotated[Line | None, Flag("--image", metavar="NAME"), Reference(see="kubernetes.md")] = Field(
        None, description="Kubernetes: image of the pods; overrides launch.kubernetes.image."
    )
    namespace: Annotated[
        Line | None, Flag("--namespace", metavar="NAME"), Reference(default="that of the kubeconfig")
    ] = Field(None, description="Kubernetes: the namespace; overrides launch.kubernetes.namespace.")
    volcano: Annotated[bool | None, Flag("--volcano", kind=bool), Reference(default="a plain Job")] = Field(
        None, description="Kubernetes: a Job of Volcano, whose pods are scheduled together."
    )
    kubernetes: Annotated[
        KubernetesSettings,
        Variable(ignored="write launch.kubernetes into the YAML"),
        Reference(see="kubernetes.md#settings"),
    ] = Field(default_factory=KubernetesSettings, description="Kubernetes: the pods of a job, and where they run.")
    nnodes: Annotated[Nodes | None, Flag("--nnodes", metavar="N"), Reference(see="join.md")] = Field(
        None, description="Nodes that run this same command: 4, or at least and at most so many: 2:4."
    )
    node_rank: Annotated[Index | None, Flag("--node-rank", kind=int), Reference(default="by order of arrival")] = Field(
        None, description="Which of these nodes this is; 0 launches."
    )
    master: Annotated[Line | None, Flag("--master", metavar="HOST:PORT")] = Field(
        None, description="Where the launcher is that the other nodes join, HOST:PORT; the port is 29400 by default."
    )
    workers_per_node: Annotated[
        Annotated[Count, Field(le=65536)] | None,
        Flag("--workers-per-node", kind=int, metavar="N"),
        Reference(default="one per device"),
    ] = Field(None, description="Ranks of each node, or of this one where it joins.")
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
        Variable(ignored="export the variables themselves, and name them with --env K"),
        Reference(see="runs.md#secrets"),
    ] = Field(
        default_factory=dict,
        description="Variables for every rank; one without a value is taken from the environment and written nowhere.",
    )
    master_port: Annotated[
        Port | None, Flag("--master-port", "--master_port", kind=int), Reference(default="a free one")
    ] = Field(
        None, description="Port of MindSpore's scheduler, or of the launcher where nodes join a master without a port."
    )
    bind_cores: Annotated[bool, Flag("--bind-cores/--no-bind-cores", kind=bool)] = Field(
        False, description="Give every rank an equal share of the cores, and OMP_NUM_THREADS to match unless it is set."
    )
    numa: Annotated[bool, Flag("--numa/--no-numa", kind=bool), Reference(see="#cores-and-memory")] = Field(
        False, description="Bind every rank to the cores and the memory of its device's NUMA node."
    )
    core_map: Annotated[NumberMap | None, Flag("--core-map", metavar="JSON")] = Field(
        None,
        description='Cores of each device or rank, for example {"0": "0-9", "1": "10-19"}; msrun\'s form is understood '
        "too.",
    )
    node_map: Annotated[NumberMap | None, Flag("--node-map", metavar="JSON")] = Field(
        None, description='NUMA nodes whose cores each device or rank gets, for example {"0": "0", "1": "1"}.'
    )
    memory_map: Annotated[NumberMap | None, Flag("--memory-map", metavar="JSON")] = Field(
        None,
        description='NUMA nodes that the memory of each device or rank comes from, and no other, for example {"0": '
        '"0"}.',
    )

    @property
    def needs_numa(self) -> bool:
        """Tell whether planning needs the NUMA nodes of the hosts."""
        return self.numa or self.node_map is not None or self.memory_map is not None

    tail: Annotated[Tail, Flag("--tail", metavar="RANKS")] = Field(
        (0,), description='Ranks whose output the console shows, for example "0,2-3", all or none.'
    )
    stdin: Annotated[RankOrNone, Flag("--stdin", metavar="RANK")] = Field(
        "auto", description="Rank that reads what is typed or piped here: a number, none, or auto: the only one."
    )
    runs_dir: Annotated[PathText, Flag("--runs-dir", "--log_dir", metavar="DIR")] = Field(
        "mslaunch-runs", description="Folder that holds the runs."
    )
    run_id: Annotated[
        str | None,
        AfterValidator(_no_link),
        Flag("--run-id", metavar="NAME"),
        Reference(default="date, time and a random suffix"),
    ] = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="Name of the run.")
    cwd: Annotated[Literal["rank", "submit"], Flag("--cwd", metavar="rank|submit")] = Field(
        "rank",
        description="Working directory of the ranks: a folder of their own (rank), or that of the launch (submit).",
    )
    shared: Annotated[
        Folders, Flag("--shared", kind=list, metavar="DIR"), Variable(is_list=True), Reference(see="runs.md")
    ] = Field(
        (), description="Folder of the project that ranks write to, for example checkpoint; they change no other."
    )
    config_arg: Text | None = Field(
        "--config_path",
        description="The script's argument for its configuration, for a script that takes it; null leaves it out.",
    )
    python: Annotated[PathText | None, Reference(default="mslaunch's own")] = Field(
        None, description="The Python that runs the ranks."
    )
    setup: Text | None = Field(
        None, description="Shell commands, run once per host; the ranks get the environment that they leave."
    )
    sync: Annotated[
        SyncSettings | None,
        Variable(ignored="write launch.sync into the YAML"),
        Reference(see="join.md#data-in-buckets"),
    ] = Field(
        None,
        description="Data that each host fetches before its ranks start and sends when they have ended: `{before: "
        "[{from: obs://b/data, to: /cache/data}], after: [{from: outputs, to: obs://b/out}]}`.",
    )
    metrics: Annotated[bool | tuple[MetricEntry, ...], Reference(see="metrics.md")] = Field(
        True,
        description="Further metrics to read from the output of the ranks: `[{name: acc, regex: 'acc: ([\\d.]+)'}]`; "
        "false: measure nothing.",
    )
    grace: Seconds = Field(10.0, description="Seconds between SIGTERM and SIGKILL.")
    timeout: Annotated[Wait | None, Flag("--timeout", kind=float, metavar="SECONDS")] = Field(
        None, description="Seconds that the whole job may take; then exit code 124."
    )
    stall_timeout: Annotated[
        Wait | None, Flag("--stall-timeout", kind=float, metavar="SECONDS"), Reference(see="failures.md")
    ] = Field(None, description="Seconds without output from any rank that count as a hang.")
    on_stall: Literal["stop", "report"] = Field(
        "stop", description="What a hang does: stop ends the job with exit code 124, report lets it go on."
    )
    on_nan: Literal["report", "stop"] = Field(
        "report",
        description="What a loss that is NaN or infinite does: report prints a note at once and again at the end, stop "
        "ends the job with exit code 1.",
    )
    exit_skew: Annotated[Wait, Reference(see="failures.md")] = Field(
        300.0, description="Seconds that ranks may stay silent and idle after one has ended with code 0."
    )
    require_init: Annotated[bool, Reference(see="failures.md")] = Field(
        False, description="Fail a job whose ranks use MindSpore and never call init(): each would train alone."
    )
    connect_timeout: Wait = Field(
        60.0,
        description="SSH: seconds that a host may take until its agent answers; after 10, 30 and 60 s a line names "
        "those that have not answered.",
    )
    host_lost_after: Annotated[Wait, Reference(see="hosts.md#when-something-breaks")] = Field(
        10.0, description="Seconds of silence after which the launcher counts a host as lost."
    )
    launcher_lost_after: Wait = Field(
        300.0,
        description="SSH and Slurm: seconds of silence after which a host counts its launcher as lost and ends its "
        "ranks.",
    )
    report: Annotated[bool, Reference(see="browser.md")] = Field(
        False, description="Write report.html into the run's folder when the run has ended."
    )
    max_restarts: Annotated[
        Annotated[int, Field(ge=0)],
        Flag("--max-restarts", kind=int, metavar="N"),
        Reference(see="failures.md#restarts"),
    ] = Field(
        0, description="How often a failed job is started again; attempts that save a newer checkpoint do not count."
    )
    min_workers: Annotated[Count | None, Reference(see="hosts.md")] = Field(
        None,
        description="With max_restarts: a job that loses a host goes on with those left, if they have this many ranks.",
    )
    backoff: Seconds = Field(5.0, description="Seconds before a restart; doubles each time, up to a minute.")
    no_restart_codes: Codes = Field((), description="Exit codes after which no restart is tried.")
    checkpoints: PathText | None = Field(
        None, description="Folder of a rank's checkpoints, relative to its own or absolute; {rank} is its number."
    )
    checkpoint_prefix: Annotated[Text | None, Reference(see="failures.md#restarts")] = Field(
        None, description="The network that a restart resumes, where several are saved: how its files' names begin."
    )
    tags: Annotated[
        Tags, Flag("--tag", kind=list, metavar="NAME"), Variable(is_list=True), Reference(see="afterwards.md")
    ] = Field((), description="Tag of the run, by which `mslaunch ps --tag` finds it.")
    on_end: Annotated[Text | None, Reference(see="afterwards.md#be-told-of-the-end")] = Field(
        None, description="Shell command for the end of the run; its standard input is the record, as JSON."
    )
    webhook: Url | None = Field(None, description="URL that the end of the run is posted to, as JSON.")


def flag_of(name: str, choices: Collection[str] = ()) -> Flag | None:
    """Return how a setting is given on the command line, if it is, with its sentences for --help."""
    flag = _metadata(name, Flag)
    if flag is None:
        return None
    sentences = [flag.help or str(LaunchSettings.model_fields[name].description)]
    if default := reference_of(name).default:
        sentences.append(f"By default {default}.")
    if choices:
        sentences.append(f"One of {', '.join(choices)}, or a plug-in's.")
    return flag.with_help(" ".join(sentences))


def variable_of(name: str) -> Variable:
    """Return how a variable gives a setting."""
    return _metadata(name, Variable) or Variable()


def reference_of(name: str) -> Reference:
    """Return what the documentation adds to a setting's description."""
    return _metadata(name, Reference) or Reference()


def _metadata(name: str, kind: type[M]) -> M | None:
    for note in LaunchSettings.model_fields[name].metadata:
        if isinstance(note, kind):
            return note
    return None
