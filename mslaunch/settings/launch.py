"""Everything that `launch:` may hold: each setting with its kind, its flag and what it does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from mslaunch.settings import value_types as kinds
from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.settings.setting import Before, Matching, setting, settings_in
from mslaunch.shared.metric_values import RESERVED, is_name


def _bucket(value: str) -> str:
    if not re.fullmatch(r"(obs|s3)://[^/ @?#:]+(/.*)?", value) or not value.isprintable():
        raise ValueError("name a bucket and a folder in it, for example obs://bucket/data")
    return value.rstrip("/")


def _local(value: str) -> str:
    if not value or "://" in value or not value.isprintable():
        raise ValueError("name a folder of the host, for example /cache/data")
    return value


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not value.isprintable() or " " in value:
        raise ValueError("write the whole address, for example https://obs.cn-north-4.myhuaweicloud.com")
    return value


def _without_keys(value: Any) -> Any:
    """Refuse keys in an address: the plan would hold them."""
    if isinstance(value, str) and "://" in value and "@" in value:
        raise ValueError("leave keys out of the address: they come from the environment (--env AWS_SECRET_ACCESS_KEY)")
    return value


Bucket = Annotated[str, _bucket, Before(_without_keys)]
Local = Annotated[str, _local]
Absolute = Annotated[Local, Matching("/.*", "name a folder of the host by its absolute path, for example /cache/data")]


@dataclass(frozen=True)
class Fetched:
    """One of `launch.sync.before`."""

    source: Bucket = setting(..., "Folder or object of a bucket.", key="from")
    target: Absolute = setting(..., "Folder of the host that it is written into.", key="to")


@dataclass(frozen=True)
class Sent:
    """One of `launch.sync.after`."""

    source: Local = setting(
        ..., "Folder or file; a relative path is looked up in the working directory of each rank.", key="from"
    )
    target: Bucket = setting(..., "Folder of a bucket that it is written into.", key="to")


@dataclass(frozen=True)
class SyncSettings:
    """What stands under `launch.sync`."""

    before: tuple[Fetched, ...] = setting((), "Fetched on each host before its ranks start.")
    after: tuple[Sent, ...] = setting((), "Sent from each host when its ranks have ended.")
    endpoint: Annotated[str, _endpoint, Before(_without_keys)] | None = setting(
        None, "Address of the object store; by default S3_ENDPOINT_URL, then AWS_ENDPOINT_URL."
    )

    def __str__(self) -> str:
        moves = [
            f"{name} {copy.source} to {copy.target}" for name in ("before", "after") for copy in getattr(self, name)
        ]
        return "; ".join([*moves, *([f"endpoint {self.endpoint}"] if self.endpoint else [])])


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


@dataclass(frozen=True)
class MetricEntry:
    """One of `launch.metrics`."""

    name: Annotated[str, _name] = setting(..., "What the metric is called.")
    regex: Annotated[str, _regex] = setting(
        ..., "Regular expression of Python's re, searched in each line; its first group is the number."
    )


@dataclass(frozen=True)
class HostEntry:
    """One of `launch.hosts`."""

    address: kinds.Text = setting(..., "Name or address, as for ssh.")
    devices: kinds.Devices | None = setting(None, 'Devices to use there, for example "0-7"; by default device 0.')
    user: kinds.Text | None = setting(None, "Login name there.")
    port: kinds.Port | None = setting(None, "Port of its SSH server.")
    python: kinds.PathText | None = setting(None, "The Python that runs the ranks there.")
    env: kinds.HostVariables = setting(dict, "Variables for the ranks there.")


@dataclass(frozen=True)
class LaunchSettings:
    """Everything that stands under `launch:` in a job's YAML."""

    workers: kinds.Ranks | None = setting(
        None,
        "How many ranks to start.",
        "--workers --worker_num -n",
        int,
        absent="device_num, devices, rank table, else all devices, else 1",
    )
    script: kinds.PathText | None = setting(
        None,
        "The script, relative to the YAML's folder, then to the current one; infer looks for infer.py first.",
        "--script FILE",
        absent="train.py beside the YAML, then here",
        see="checkpoints.md#infer",
    )
    module: kinds.Text | None = setting(
        None, "A Python module instead of a script, as `python -m` takes it: pkg.train."
    )
    command: kinds.Command | None = setting(
        None,
        'Any program instead of a script, with its arguments: `[bash, run.sh, "1"]`, or one line.',
        see="coming-from.md",
    )
    devices: kinds.Devices | None = setting(
        None, 'Devices to use, for example "0-3,6".', "--devices LIST", absent="the first ones"
    )
    share_devices: bool = setting(
        False, "Use NPUs and GPUs that other runs use; CPU runs always share.", "--share-devices"
    )
    method: kinds.Text = setting(
        "dynamic", "How the ranks are started; dynamic: by mslaunch itself.", "--method NAME", see="methods.md"
    )
    allow_launcher: bool = setting(
        False,
        "Start a program that is a launcher itself, such as msrun, in every rank.",
        "--allow-launcher",
        see="coming-from.md#programs-that-are-launchers",
    )
    hosts: kinds.Text | Annotated[tuple[HostEntry, ...], Before(kinds.split_hosts)] | None = setting(
        None,
        'Hosts and their devices, for example "n1:8,n2:[0-3]"; in the YAML also a list of address, '
        "devices, user, port, python, env.",
        "--hosts LIST",
        absent="this machine",
        see="hosts.md",
    )
    hostfile: kinds.PathText | None = setting(
        None, "File that names the hosts, one per line: n1 slots=8.", "--hostfile FILE"
    )
    accept_new_host_keys: bool = setting(False, "Trust hosts whose SSH key is not known yet.", "--accept-new-host-keys")
    transport: kinds.Text | None = setting(
        None,
        "How the hosts are reached.",
        "--transport NAME",
        absent="ssh with hosts, slurm inside an allocation, else local",
        see="transports.md",
    )
    nodes: kinds.Ranks | None = setting(
        None, "Slurm, Kubernetes: how many nodes.", "--nodes -N", int, absent="1; inside an allocation, all"
    )
    partition: kinds.Line | None = setting(None, "Slurm: the partition.", "--partition -p NAME", absent="Slurm's")
    time: kinds.Line | None = setting(
        None, "Slurm: the time limit, for example 1:00:00.", "--time -t LIMIT", absent="Slurm's"
    )
    account: kinds.Line | None = setting(None, "Slurm: the account.", "--account -A NAME", absent="Slurm's")
    requeue: bool = setting(
        False,
        "Slurm: queue a preempted job again; it resumes from its newest complete checkpoint.",
        "--requeue/--no-requeue",
    )
    sbatch_args: kinds.Lines = setting(
        (), "Slurm: further options of sbatch, for example --gres=gpu:8.", "--sbatch-arg OPTION", list
    )
    image: kinds.Line | None = setting(
        None, "Kubernetes: image of the pods; overrides launch.kubernetes.image.", "--image NAME", see="kubernetes.md"
    )
    namespace: kinds.Line | None = setting(
        None,
        "Kubernetes: the namespace; overrides launch.kubernetes.namespace.",
        "--namespace NAME",
        absent="that of the kubeconfig",
    )
    volcano: bool | None = setting(
        None,
        "Kubernetes: a Job of Volcano, whose pods are scheduled together.",
        "--volcano",
        bool,
        absent="a plain Job",
    )
    kubernetes: KubernetesSettings = setting(
        KubernetesSettings,
        "Kubernetes: the pods of a job, and where they run.",
        ignored="write launch.kubernetes into the YAML",
        see="kubernetes.md#settings",
    )
    nnodes: kinds.Nodes | None = setting(
        None, "Nodes that run this same command: 4, or at least and at most so many: 2:4.", "--nnodes N", see="join.md"
    )
    node_rank: kinds.Index | None = setting(
        None, "Which of these nodes this is; 0 launches.", "--node-rank", int, absent="by order of arrival"
    )
    master: kinds.Line | None = setting(
        None,
        "Where the launcher is that the other nodes join, HOST:PORT; the port is 29400 by default.",
        "--master HOST:PORT",
    )
    workers_per_node: kinds.Ranks | None = setting(
        None, "Ranks of each node, or of this one where it joins.", "--workers-per-node N", int, absent="one per device"
    )
    launcher_only: bool = setting(False, "Launch for the nodes that join, and run no rank here.", "--launcher-only")
    join_timeout: kinds.Wait = setting(
        600.0, "Seconds to wait for the launcher, and for the nodes that join it.", "--join-timeout SECONDS", float
    )
    secret_file: kinds.PathText | None = setting(
        None,
        "File with the secret that all nodes know; the variable MSLAUNCH_SECRET holds it as well.",
        "--secret-file FILE",
    )
    rank_table: kinds.PathText | None = setting(
        None, "Rank table to use; exported as RANK_TABLE_FILE.", "--rank-table --rank_table_file FILE"
    )
    env: kinds.Variables = setting(
        dict,
        "Variables for every rank; one without a value is taken from the environment and written nowhere.",
        "--env K=V",
        list,
        help="Variable for every rank, K=V; K alone takes it from here and writes it nowhere.",
        ignored="export the variables themselves, and name them with --env K",
        see="runs.md#secrets",
    )
    master_port: kinds.Port | None = setting(
        None,
        "Port of MindSpore's scheduler, or of the launcher where nodes join a master without a port.",
        "--master-port --master_port",
        int,
        absent="a free one",
    )
    bind_cores: bool = setting(
        False,
        "Give every rank an equal share of the cores, and OMP_NUM_THREADS to match unless it is set.",
        "--bind-cores/--no-bind-cores",
    )
    numa: bool = setting(
        False,
        "Bind every rank to the cores and the memory of its device's NUMA node.",
        "--numa/--no-numa",
        see="#cores-and-memory",
    )
    core_map: kinds.NumberMap | None = setting(
        None,
        'Cores of each device or rank, for example {"0": "0-9", "1": "10-19"}; msrun\'s form is understood too.',
        "--core-map JSON",
    )
    node_map: kinds.NumberMap | None = setting(
        None, 'NUMA nodes whose cores each device or rank gets, for example {"0": "0", "1": "1"}.', "--node-map JSON"
    )
    memory_map: kinds.NumberMap | None = setting(
        None,
        'NUMA nodes that the memory of each device or rank comes from, and no other, for example {"0": "0"}.',
        "--memory-map JSON",
    )

    @property
    def needs_numa(self) -> bool:
        """Tell whether planning needs the NUMA nodes of the hosts."""
        return self.numa or self.node_map is not None or self.memory_map is not None

    tail: kinds.Tail = setting(
        (0,), 'Ranks whose output the console shows, for example "0,2-3", all or none.', "--tail RANKS"
    )
    stdin: kinds.RankOrNone = setting(
        "auto", "Rank that reads what is typed or piped here: a number, none, or auto: the only one.", "--stdin RANK"
    )
    runs_dir: kinds.PathText = setting("mslaunch-runs", "Folder that holds the runs.", "--runs-dir --log_dir DIR")
    run_id: kinds.RunName | None = setting(
        None, "Name of the run.", "--run-id NAME", absent="date, time and a random suffix"
    )
    cwd: Literal["rank", "submit"] = setting(
        "rank",
        "Working directory of the ranks: a folder of their own (rank), or that of the launch (submit).",
        "--cwd rank|submit",
    )
    shared: kinds.Folders = setting(
        (),
        "Folder of the project that ranks write to, for example checkpoint; they change no other.",
        "--shared DIR",
        list,
        see="runs.md",
    )
    config_arg: kinds.Text | None = setting(
        "--config_path", "The script's argument for its configuration, for a script that takes it; null leaves it out."
    )
    python: kinds.PathText | None = setting(None, "The Python that runs the ranks.", absent="mslaunch's own")
    setup: kinds.Text | None = setting(
        None, "Shell commands, run once per host; the ranks get the environment that they leave."
    )
    sync: SyncSettings | None = setting(
        None,
        "Data that each host fetches before its ranks start and sends when they have ended: `{before: "
        "[{from: obs://b/data, to: /cache/data}], after: [{from: outputs, to: obs://b/out}]}`.",
        ignored="write launch.sync into the YAML",
        see="join.md#data-in-buckets",
    )
    metrics: bool | tuple[MetricEntry, ...] = setting(
        True,
        "Further metrics to read from the output of the ranks: `[{name: acc, regex: 'acc: ([\\d.]+)'}]`; "
        "false: measure nothing.",
        see="metrics.md",
    )
    grace: kinds.Seconds = setting(10.0, "Seconds between SIGTERM and SIGKILL.")
    timeout: kinds.Wait | None = setting(
        None, "Seconds that the whole job may take; then exit code 124.", "--timeout SECONDS", float
    )
    stall_timeout: kinds.Wait | None = setting(
        None,
        "Seconds without output from any rank that count as a hang.",
        "--stall-timeout SECONDS",
        float,
        see="failures.md",
    )
    on_stall: Literal["stop", "report"] = setting(
        "stop", "What a hang does: stop ends the job with exit code 124, report lets it go on."
    )
    on_nan: Literal["stop", "report"] = setting(
        "report",
        "What a loss that is NaN or infinite does: report prints a note at once and again at the end, stop "
        "ends the job with exit code 1.",
    )
    exit_skew: kinds.Wait = setting(
        300.0, "Seconds that ranks may stay silent and idle after one has ended with code 0.", see="failures.md"
    )
    require_init: bool = setting(
        False, "Fail a job whose ranks use MindSpore and never call init(): each would train alone.", see="failures.md"
    )
    connect_timeout: kinds.Wait = setting(
        60.0,
        "SSH: seconds that a host may take until its agent answers; after 10, 30 and 60 s a line names "
        "those that have not answered.",
    )
    host_lost_after: kinds.Wait = setting(
        10.0, "Seconds of silence after which the launcher counts a host as lost.", see="hosts.md#when-something-breaks"
    )
    launcher_lost_after: kinds.Wait = setting(
        300.0, "SSH and Slurm: seconds of silence after which a host counts its launcher as lost and ends its ranks."
    )
    report: bool = setting(False, "Write report.html into the run's folder when the run has ended.", see="browser.md")
    max_restarts: kinds.Index = setting(
        0,
        "How often a failed job is started again; attempts that save a newer checkpoint do not count.",
        "--max-restarts N",
        int,
        see="failures.md#restarts",
    )
    min_workers: kinds.Count | None = setting(
        None,
        "With max_restarts: a job that loses a host goes on with those left, if they have this many ranks.",
        see="hosts.md",
    )
    backoff: kinds.Seconds = setting(5.0, "Seconds before a restart; doubles each time, up to a minute.")
    no_restart_codes: kinds.Codes = setting((), "Exit codes after which no restart is tried.")
    checkpoints: kinds.PathText | None = setting(
        None, "Folder of a rank's checkpoints, relative to its own or absolute; {rank} is its number."
    )
    checkpoint_prefix: kinds.Text | None = setting(
        None,
        "The network that a restart resumes, where several are saved: how its files' names begin.",
        see="failures.md#restarts",
    )
    tags: kinds.Tags = setting(
        (), "Tag of the run, by which `mslaunch ps --tag` finds it.", "--tag NAME", list, see="afterwards.md"
    )
    on_end: kinds.Text | None = setting(
        None,
        "Shell command for the end of the run; its standard input is the record, as JSON.",
        see="afterwards.md#be-told-of-the-end",
    )
    webhook: kinds.Url | None = setting(None, "URL that the end of the run is posted to, as JSON.")


SETTINGS = settings_in(LaunchSettings)
PROGRAM_SETTINGS = ("script", "module", "command")
"""The settings that name a program; a job has one of them."""
COMMAND_LINE = "the command line"
"""Where a command comes from that was typed as it is."""


def settings_of(command: tuple[str, ...], is_module: bool = False) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The setting that a typed command stands for, and the arguments that follow."""
    if is_module:
        return {"module": command[0]}, command[1:]
    return ({"script": command[0]}, command[1:]) if command[0].endswith(".py") else ({"command": command}, ())
