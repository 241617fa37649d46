"""The variables by which batch systems and clusters describe their nodes: one table. Pure."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mslaunch.documents.limits import Unreadable, read_text

Environment = Mapping[str, str]
_VOLCANO_HOSTS = re.compile(r"VC_([A-Z0-9_]+)_HOSTS")


@dataclass(frozen=True, slots=True)
class ClusterEnvironment:
    """What a system has told about this node; None where it has not."""

    system: str
    starts_all: bool = False
    """It starts the same command on all nodes; otherwise somebody has to ask for the joining."""
    nodes: int | None = None
    rank: int | None = None
    master: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks for each node."""
    rank_table: str | None = None
    """The file that describes the devices of all nodes, for methods that need one."""
    is_launcher: bool | None = None
    """Whether this node launches, where that is not for rank 0 to do."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Which variable each came from."""

    def words(self) -> str:
        """Say what was found, and where."""
        values = {name: getattr(self, name) for name in self.sources}
        if "is_launcher" in values:
            values["is_launcher"] = "this node" if self.is_launcher else "another node"
        parts = [f"{label} {values[name]} ({self.sources[name]})" for name, label in _LABELS.items() if name in values]
        return f"found {self.system}: {', '.join(parts)}"


_LABELS = {
    "nodes": "nodes",
    "rank": "node rank",
    "master": "master",
    "port": "port",
    "slots": "workers per node",
    "rank_table": "rank table",
    "is_launcher": "launcher",
}


def detect(environment: Environment) -> ClusterEnvironment | None:
    """Return what the first system of the table tells; None where this is no node of one."""
    if environment.get("MSLAUNCH_RUN_DIR"):
        return None  # a rank of a job: what is set there is the job's own
    for variables, read in SYSTEMS:
        if not variables.isdisjoint(environment) and (cluster := read(environment)) is not None:
            return cluster
    return None


def in_slurm_allocation(environment: Environment) -> bool:
    """Tell whether this process is in a job of Slurm's."""
    return bool(environment.get("SLURM_JOB_ID") and environment.get("SLURM_JOB_NODELIST"))


def _number(environment: Environment, *names: str) -> tuple[int | None, str]:
    """The first of these variables that is a number, and its name."""
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 6:
            return int(text), name
    return None, ""


def _made(system: str, starts_all: bool = False, **fields: tuple[object, str]) -> ClusterEnvironment:
    values = {name: value for name, (value, _) in fields.items() if value is not None}
    sources = {name: fields[name][1] for name in values}
    return ClusterEnvironment(system, starts_all, sources=sources, **values)  # type: ignore[arg-type]


def _volcano(environment: Environment) -> ClusterEnvironment | None:
    """Volcano's env and svc plug-ins: the index in a task, and names and number of the pods of every task."""
    rank, source = _number(environment, "VC_TASK_INDEX", "VK_TASK_INDEX")
    tasks = [match[1] for name in sorted(environment) if (match := _VOLCANO_HOSTS.fullmatch(name))]
    if rank is None or len(tasks) != 1:  # several tasks: which of them ours is, Volcano does not tell
        return None
    listed = f"VC_{tasks[0]}_HOSTS"
    hosts = [name for name in environment[listed].split(",") if name]
    counted = _number(environment, "MA_NUM_HOSTS", f"VC_{tasks[0]}_NUM")
    nodes = counted if counted[0] is not None else (len(hosts), listed)
    is_modelarts = "MA_NUM_HOSTS" in environment
    slots = _number(environment, "MA_NUM_GPUS") if is_modelarts else (None, "")
    return _made(
        "ModelArts" if is_modelarts else "Volcano",
        starts_all=True,
        nodes=nodes,
        rank=(rank, source),
        master=(hosts[0] if hosts else None, listed),
        slots=(slots[0] or None, slots[1]),
        rank_table=(environment.get("RANK_TABLE_FILE") or None, "RANK_TABLE_FILE"),
    )


def _ascend_operator(environment: Environment) -> ClusterEnvironment | None:
    """The Ascend operator of MindCluster: all ranks, those of a pod, and the scheduler's pod, which is the master."""
    rank = _number(environment, "MS_NODE_RANK")
    workers, _ = _number(environment, "MS_WORKER_NUM")
    local = _number(environment, "MS_LOCAL_WORKER")
    if rank[0] is None or not workers or not local[0] or not environment.get("MS_SCHED_HOST"):
        return None
    role = environment.get("MS_ROLE")
    is_scheduler = {"MS_SCHED": True, "MS_WORKER": False}.get(role or "")
    return _made(
        "the Ascend operator",
        starts_all=True,
        nodes=(max(1, workers // local[0]), "MS_WORKER_NUM / MS_LOCAL_WORKER"),
        rank=rank if is_scheduler is None else (None, ""),  # scheduler and first worker both have rank 0
        master=(environment["MS_SCHED_HOST"], "MS_SCHED_HOST"),
        port=_number(environment, "MS_SCHED_PORT"),
        slots=local,
        is_launcher=(is_scheduler, "MS_ROLE"),
    )


def _torchrun(environment: Environment) -> ClusterEnvironment | None:
    """What torchrun takes in place of its options, and Kubeflow's trainer sets."""
    cluster = _read_variables("torchrun's variables", "PET_", environment)
    if cluster is None or cluster.nodes is None:
        return None
    return replace(cluster, starts_all=True)


def _read_variables(system: str, prefix: str, environment: Environment) -> ClusterEnvironment | None:
    """Torchrun's variables, or what scripts for it commonly export on every node."""
    address = f"{prefix}MASTER_ADDR" if environment.get(f"{prefix}MASTER_ADDR") else "MASTER_ADDR"
    cluster = _made(
        system,
        nodes=_number(environment, f"{prefix}NNODES"),
        rank=_number(environment, f"{prefix}NODE_RANK"),
        master=(environment.get(address) or None, address),
        port=_number(environment, f"{prefix}MASTER_PORT", "MASTER_PORT"),
        slots=_number(environment, f"{prefix}NPROC_PER_NODE"),
    )
    return None if cluster.rank is None else cluster


def _indexed_job(environment: Environment) -> ClusterEnvironment | None:
    """An Indexed Job of Kubernetes tells the index and nothing else."""
    rank = _number(environment, "JOB_COMPLETION_INDEX")
    return None if rank[0] is None else _made("a Kubernetes Indexed Job", rank=rank)


def _mpi(environment: Environment) -> ClusterEnvironment | None:
    """One process on each node, started by mpirun."""
    local, _ = _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    rank = _number(environment, "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    if rank[0] is None or local not in (None, 1):
        return None
    return _made("MPI", rank=rank, nodes=_number(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))


def _node_file(system: str, variable: str, environment: Environment) -> ClusterEnvironment | None:
    """A file that names the nodes of a batch job, a line for each slot; this node is found in it by its name."""
    try:
        lines = read_text(Path(environment[variable]), errors="replace", only_files=True).split()
    except (OSError, ValueError, Unreadable):
        return None
    names = list(dict.fromkeys(lines))
    own = _short(socket.gethostname())
    rank = next((at for at, name in enumerate(names) if _short(name) == own), None)
    master = (names[0] if names else None, variable)
    return _made(system, nodes=(len(names) or None, variable), rank=(rank, variable), master=master)


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


SYSTEMS: tuple[tuple[frozenset[str], Callable[[Environment], ClusterEnvironment | None]], ...] = (
    (frozenset({"VC_TASK_INDEX", "VK_TASK_INDEX"}), _volcano),
    (frozenset({"MS_NODE_RANK"}), _ascend_operator),
    (frozenset({"PET_NODE_RANK"}), _torchrun),
    (frozenset({"JOB_COMPLETION_INDEX"}), _indexed_job),
    (frozenset({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}), _mpi),
    (frozenset({"PBS_NODEFILE"}), partial(_node_file, "PBS", "PBS_NODEFILE")),
    (frozenset({"LSB_DJOB_HOSTFILE"}), partial(_node_file, "LSF", "LSB_DJOB_HOSTFILE")),
    (frozenset({"NODE_RANK"}), partial(_read_variables, "variables of a torchrun script", "")),
)
"""Variables of each system, one of which is set on its nodes; whoever tells most comes first."""
