"""The built-in ways to start a job, each one pure function from a placed job to its processes and files.

`cluster_env`, `scheduler_process`, `worker_processes` and `rank_env` are for the methods of plug-ins too.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mslaunch.hosts import LOCAL, Host
from mslaunch.plan.binding import Binding
from mslaunch.plan.model import Facts, File, Process
from mslaunch.plan.spec import JobSpec
from mslaunch.ranges import format_ranges
from mslaunch.settings.environment import is_identity
from mslaunch.settings.program import Program
from mslaunch.shared import layout
from mslaunch.shared.messages import Start


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank in its place: a device of a host and, where ranks are bound, its cores and memory."""

    rank: int
    node: int
    host: Host
    local_rank: int
    device_id: int
    binding: Binding


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """What all methods start from."""

    spec: JobSpec
    hosts: tuple[Host, ...]
    facts: Facts
    world_size: int
    env: Mapping[str, str]
    program: Program
    ranks: tuple[Rank, ...]

    def path(self, *parts: str) -> str:
        return posixpath.join(self.facts.run_dir, *parts)

    @property
    def command(self) -> tuple[str, ...]:
        """What mslaunch_rank.py gets in every rank: the program as it was copied, or the project's own."""
        root = self.facts.job_dir if self.spec.launch.cwd == "submit" else self.path(layout.CODE)
        return self.program.command(posixpath.join(root, self.facts.workdir))


@dataclass(frozen=True, slots=True)
class MethodPlan:
    """What a method answers."""

    env: Mapping[str, str]
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()


Method = Callable[[PlacedJob], MethodPlan]


def dynamic(job: PlacedJob) -> MethodPlan:
    """Mslaunch starts MindSpore's scheduler and every worker itself."""
    processes = (scheduler_process(job, "on-import"), *worker_processes(job, cluster=True))
    return MethodPlan({**job.env, **cluster_env(job)}, processes)


def msrun(job: PlacedJob) -> MethodPlan:
    """One msrun per host, from the rendered script."""
    return _scripted(job, "msrun.sh", job.hosts, cluster=True)


def mpirun(job: PlacedJob) -> MethodPlan:
    """One mpirun on the first host, which reaches the others itself; on a CPU with MindSpore's scheduler beside it."""
    # Names, since Slurm and ~/.ssh/config know more about them than an address says.
    names = (host.address if host.name == LOCAL else host.name for host in job.hosts)
    hostfile = "".join(f"{name} slots={len(host.devices)}\n" for name, host in zip(names, job.hosts, strict=True))
    return _scripted(job, "mpirun.sh", job.hosts[:1], _on_cpu(job), (File(layout.HOSTFILE, hostfile),))


def rank_table(job: PlacedJob) -> MethodPlan:
    """The legacy Ascend start: one process a device, RANK_TABLE_FILE set; on a CPU with a scheduler beside it."""
    return _scripted(job, "rank_table.sh", job.hosts, _on_cpu(job))


METHODS: dict[str, Method] = {
    "dynamic": dynamic,
    "msrun": msrun,
    "mpirun": mpirun,
    "rank-table": rank_table,
}


BY_SCRIPT = ("msrun", "mpirun", "rank-table")
"""Methods whose ranks are started by a rendered script."""


def _on_cpu(job: PlacedJob) -> bool:
    # init() fails on a CPU under plain mpirun or a plain rank-table start: there it needs a cluster too.
    return job.facts.device_target == "CPU"


def cluster_env(job: PlacedJob) -> dict[str, str]:
    """Return the variables by which all processes find MindSpore's scheduler."""
    return {
        "MS_SCHED_HOST": job.hosts[0].address,
        "MS_SCHED_PORT": str(job.facts.port),
        "MS_WORKER_NUM": str(job.world_size),
    }


def scheduler_process(job: PlacedJob, start: Start) -> Process:
    """Return MindSpore's scheduler, on the first host."""
    host = job.hosts[0].name
    return Process(
        role="scheduler",
        rank=None,
        host=host,
        device_id=None,
        argv=(job.facts.hosts[host].python, job.path(layout.BOOT)),
        env={"MS_ROLE": "MS_SCHED", "RANK_ID": "0", **_audible(job)},
        cwd=job.facts.run_dir,
        log=job.path(layout.SCHEDULER, layout.LOG),
        start=start,
    )


def _audible(job: PlacedJob) -> dict[str, str]:
    """A port that is taken is only a warning to MindSpore: the scheduler has to write those, whatever the ranks do."""
    level = job.env.get("GLOG_v") or job.facts.environment.get("GLOG_v", "")
    return {"GLOG_v": "2"} if level in ("3", "4") else {}


def rank_env(job: PlacedJob, rank: Rank, cluster: bool) -> dict[str, str]:
    """Return the variables that differ from rank to rank."""
    on_host = str(len(rank.host.devices))
    env = {
        "RANK_ID": str(rank.rank),
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "LOCAL_WORLD_SIZE": on_host,
        "NODE_RANK": str(rank.node),
        "GROUP_RANK": str(rank.node),
        "DEVICE_ID": str(rank.device_id),
        "DEVICE_NUM": on_host,
        "MSLAUNCH_HOST": rank.host.name,
    }
    if cluster:
        env |= {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank.rank)}
    if job.spec.launch.method == "rank-table":
        env["SERVER_ID"] = str(rank.node)
    if cores := rank.binding.cores:
        env["MSLAUNCH_CORES"] = format_ranges(cores)
        if "OMP_NUM_THREADS" not in job.env and "OMP_NUM_THREADS" not in job.facts.environment:
            env["OMP_NUM_THREADS"] = str(len(cores))
    if rank.binding.node is not None:
        env["MSLAUNCH_NUMA_NODE"] = str(rank.binding.node)
    if rank.binding.memory:
        env["MSLAUNCH_MEMORY_NODES"] = format_ranges(rank.binding.memory)
    if job.facts.device_target == "Ascend" and "ASCEND_PROCESS_LOG_PATH" not in job.facts.environment:
        env["ASCEND_PROCESS_LOG_PATH"] = job.path(layout.rank_folder(rank.rank), layout.PLOG)
    # What the user gives outweighs all this; msrun and the scripts set some of these too, so it is given once more.
    given = {**job.spec.launch.env, **rank.host.env}
    env |= {name: value for name, value in rank.host.env.items() if not is_identity(name)}
    own = {name: value if is_identity(name) else given.get(name, value) for name, value in env.items()}
    return {name: value for name, value in own.items() if value is not None}


def worker_processes(job: PlacedJob, cluster: bool, by_script: bool = False) -> tuple[Process, ...]:
    """Return one process a rank, in the order of ranks; `cluster`: they look for MindSpore's scheduler."""
    return tuple(
        Process(
            role="worker",
            rank=rank.rank,
            host=rank.host.name,
            device_id=rank.device_id,
            argv=(job.facts.hosts[rank.host.name].python, job.path(layout.BOOT), *job.command),
            env=rank_env(job, rank, cluster),
            cwd=_workdir(job, rank.rank),
            log=job.path(layout.rank_folder(rank.rank), layout.LOG),
            start="by-script" if by_script else "now",
        )
        for rank in job.ranks
    )


def _workdir(job: PlacedJob, rank: int) -> str:
    if job.spec.launch.cwd == "submit":
        return job.facts.submit_dir
    return posixpath.normpath(job.path(layout.work_folder(rank), job.facts.workdir))


def _scripted(
    job: PlacedJob, template: str, hosts: tuple[Host, ...], cluster: bool, files: tuple[File, ...] = ()
) -> MethodPlan:
    from mslaunch.plan.render import render_script

    env = {**job.env, **(cluster_env(job) if cluster else {})}
    workers = worker_processes(job, cluster, by_script=True)
    rendered: list[File] = []
    starters: list[Process] = []
    for node, host in enumerate(hosts):
        name = template if len(hosts) == 1 else f"{node}_{template}"
        content = render_script(template, job, env, node, cluster)
        rendered.append(File(layout.script(name), content, 0o700))
        path = job.path(layout.script(name))
        log = job.path(layout.script(name.removesuffix(".sh") + ".log"))
        starters.append(Process("script", None, host.name, None, ("bash", path), {}, job.facts.run_dir, log))
    schedulers = (scheduler_process(job, "by-script"),) if cluster else ()
    return MethodPlan(
        env, (*starters, *schedulers, *workers), (*rendered, ranks_file(workers, job.facts.run_dir), *files)
    )


def ranks_file(processes: tuple[Process, ...], run_dir: str) -> File:
    """The table beside a script from which each rank takes its own variables, with the run's folder as $run."""
    ranks = {
        str(process.rank): {key: value.replace(run_dir, "$run") for key, value in process.env.items()}
        for process in processes
        if process.rank is not None
    }
    return File(layout.RANKS, json.dumps(ranks, indent=1) + "\n")
