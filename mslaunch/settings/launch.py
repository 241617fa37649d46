"""Everything that `launch:` may hold: each setting with its kind, its flag and what it does."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.settings.metric_settings import MetricEntry
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


class Flag:
    """How a setting is given on the command line: its names, the type of its value and what stands for it in --help."""

    def __init__(self, *names: str, kind: type = str, metavar: str | None = None, help: str | None = None) -> None:
        self.names = names
        self.kind = kind
        self.metavar = metavar
        self.help = help
        """What --help says, where it is not the setting's own description."""


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

    workers: Annotated[Annotated[Count, Field(le=65536)] | None, Flag("--workers", "--worker_num", "-n", kind=int)] = (
        Field(None, description="How many ranks to start.")
    )
    script: Annotated[PathText | None, Flag("--script", metavar="FILE")] = Field(
        None,
        description="The script; by default train.py beside the config, then here; infer: infer.py, then the YAML's.",
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
    allow_launcher: Annotated[bool, Flag("--allow-launcher", kind=bool)] = Field(
        False, description="Start a program that is a launcher itself, such as msrun, in every rank."
    )
    hosts: Annotated[
        Text | Annotated[tuple[HostEntry, ...], BeforeValidator(split_hosts)] | None, Flag("--hosts", metavar="LIST")
    ] = Field(None, description='Hosts and their devices, for example "n1:8,n2:[0-3]"; in the YAML also a list.')
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
    sbatch_args: Annotated[Lines, Flag("--sbatch-arg", kind=list, metavar="OPTION")] = Field(
        (), description="Slurm: further options of sbatch, for example --gres=gpu:8."
    )
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
    nnodes: Annotated[Nodes | None, Flag("--nnodes", metavar="N")] = Field(
        None, description="Nodes that run this same command, or at least and at most so many: 4, 2:4."
    )
    node_rank: Annotated[Index | None, Flag("--node-rank", kind=int)] = Field(
        None, description="Which of these nodes this is; 0 launches. By default by order of arrival."
    )
    master: Annotated[Line | None, Flag("--master", metavar="HOST:PORT")] = Field(
        None, description="Where the launcher is that the other nodes join; the port is 29400 by default."
    )
    workers_per_node: Annotated[
        Annotated[Count, Field(le=65536)] | None, Flag("--workers-per-node", kind=int, metavar="N")
    ] = Field(
        None,
        description="Ranks of each node, or of this one where it joins; by default one for each of its devices.",
    )
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
        None, description="Port of MindSpore's scheduler, or of --master where nodes join; by default a free one."
    )
    bind_cores: Annotated[bool, Flag("--bind-cores/--no-bind-cores", kind=bool)] = Field(
        False, description="Give every rank an equal share of the cores, and set OMP_NUM_THREADS."
    )
    numa: Annotated[bool, Flag("--numa/--no-numa", kind=bool)] = Field(
        False, description="Bind every rank to the cores and the memory of its device's NUMA node."
    )
    core_map: Annotated[NumberMap | None, Flag("--core-map", metavar="JSON")] = Field(
        None, description='Cores of each device or rank, for example {"0": "0-9", "1": "10-19"}.'
    )
    node_map: Annotated[NumberMap | None, Flag("--node-map", metavar="JSON")] = Field(
        None, description='NUMA nodes whose cores each device or rank gets, for example {"0": "0", "1": "1"}.'
    )
    memory_map: Annotated[NumberMap | None, Flag("--memory-map", metavar="JSON")] = Field(
        None, description='NUMA nodes that the memory of each device or rank comes from, for example {"0": "0"}.'
    )

    @property
    def needs_numa(self) -> bool:
        """Tell whether planning needs the NUMA nodes of the hosts."""
        return self.numa or self.node_map is not None or self.memory_map is not None

    tail: Annotated[Tail, Flag("--tail", metavar="RANKS")] = Field(
        (0,), description='Ranks whose output is shown, for example "0,2-3", all or none.'
    )
    stdin: Annotated[RankOrNone, Flag("--stdin", metavar="RANK")] = Field(
        "auto", description="Rank that reads what is typed or piped here; by default the only one. none: no rank."
    )
    runs_dir: Annotated[PathText, Flag("--runs-dir", "--log_dir", metavar="DIR")] = Field(
        "mslaunch-runs", description="Folder that holds the runs."
    )
    run_id: Annotated[str | None, AfterValidator(_no_link), Flag("--run-id", metavar="NAME")] = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="Name of the run; default: date, time and a random suffix.",
    )
    cwd: Annotated[Literal["rank", "submit"], Flag("--cwd", metavar="rank|submit")] = Field(
        "rank", description="Working directory of the ranks: a folder of their own, or the one of the launch (submit)."
    )
    shared: Annotated[Folders, Flag("--shared", kind=list, metavar="DIR")] = Field(
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
    connect_timeout: Wait = Field(60.0, description="SSH: seconds that a host may take until its agent answers.")
    host_lost_after: Wait = Field(
        10.0, description="Seconds of silence after which the launcher counts a host as lost."
    )
    launcher_lost_after: Wait = Field(
        300.0, description="SSH and Slurm: seconds of silence after which a host counts its launcher as lost."
    )
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
    checkpoint_prefix: Text | None = Field(
        None, description="Which network a restart resumes, where several are saved: the beginning of its files' names."
    )
    tags: Annotated[Tags, Flag("--tag", kind=list, metavar="NAME")] = Field(
        (), description="Tag of the run, by which `mslaunch ps --tag` finds it."
    )
    on_end: Text | None = Field(
        None, description="Shell command for the end of the run; its record, as JSON, is the standard input."
    )
    webhook: Url | None = Field(None, description="URL that the end of the run is posted to, as JSON.")


def flag_of(name: str) -> Flag | None:
    """Return how a setting is given on the command line, if it is."""
    return next((found for found in LaunchSettings.model_fields[name].metadata if isinstance(found, Flag)), None)
