"""The four ways to start a job, each one pure function from a placed job to its processes and files."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mslaunch.plan.hosts import LOCAL
from mslaunch.plan.model import Facts, File, Host, Process, Start
from mslaunch.plan.ranges import format_ranges
from mslaunch.plan.spec import JobSpec

BOOT = "mslaunch_rank.py"
RANK_TABLE = "scripts/rank_table.json"
RANKS = "scripts/ranks.json"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank in its place: a device of a host and, where cores are bound, a share of its cores."""

    rank: int
    node: int
    host: Host
    local_rank: int
    device_id: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What all methods start from."""

    spec: JobSpec
    hosts: tuple[Host, ...]
    facts: Facts
    world_size: int
    env: Mapping[str, str]
    script: str
    args: tuple[str, ...]
    ranks: tuple[Rank, ...]

    def path(self, *parts: str) -> str:
        return posixpath.join(self.facts.run_dir, *parts)

    @property
    def python_script(self) -> bool:
        return self.script.endswith(".py")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a method answers."""

    env: Mapping[str, str]
    processes: tuple[Process, ...]
    files: tuple[File, ...] = ()


def dynamic(job: Job) -> Layout:
    """Mslaunch starts MindSpore's scheduler and every worker itself."""
    scheduler = _scheduler(job, "on-import" if job.python_script else "now")
    return Layout({**job.env, **_cluster_env(job)}, (scheduler, *_workers(job, cluster=True)))


def msrun(job: Job) -> Layout:
    """One msrun per host, from the rendered script."""
    return _scripted(job, "msrun.sh", job.hosts, cluster=True)


def mpirun(job: Job) -> Layout:
    """One mpirun on the first host, which reaches the others itself; on a CPU with MindSpore's scheduler beside it."""
    # Names, since Slurm and ~/.ssh/config know more about them than an address says.
    names = (host.address if host.name == LOCAL else host.name for host in job.hosts)
    hostfile = "".join(f"{name} slots={len(host.devices)}\n" for name, host in zip(names, job.hosts, strict=True))
    return _scripted(job, "mpirun.sh", job.hosts[:1], _on_cpu(job), (File("scripts/hostfile", hostfile),))


def rank_table(job: Job) -> Layout:
    """The legacy Ascend start: one process a device, RANK_TABLE_FILE set; on a CPU with a scheduler beside it."""
    return _scripted(job, "rank_table.sh", job.hosts, _on_cpu(job))


METHODS: dict[str, Callable[[Job], Layout]] = {
    "dynamic": dynamic,
    "msrun": msrun,
    "mpirun": mpirun,
    "rank-table": rank_table,
}


def _on_cpu(job: Job) -> bool:
    # init() fails on a CPU under plain mpirun or a plain rank-table start: there it needs a cluster too.
    return job.facts.device_target == "CPU"


def _cluster_env(job: Job) -> dict[str, str]:
    return {
        "MS_SCHED_HOST": job.hosts[0].address,
        "MS_SCHED_PORT": str(job.facts.port),
        "MS_WORKER_NUM": str(job.world_size),
    }


def _scheduler(job: Job, start: Start) -> Process:
    host = job.hosts[0].name
    return Process(
        role="scheduler",
        rank=None,
        host=host,
        device_id=None,
        argv=(job.facts.hosts[host].python, job.path(BOOT)),
        env={"MS_ROLE": "MS_SCHED", "RANK_ID": "0", **_audible(job)},
        cwd=job.facts.run_dir,
        log=job.path("scheduler", "log.txt"),
        start=start,
    )


def _audible(job: Job) -> dict[str, str]:
    """A port that is taken is only a warning to MindSpore: the scheduler has to write those, whatever the ranks do."""
    level = job.env.get("GLOG_v") or job.facts.environment.get("GLOG_v", "")
    return {"GLOG_v": "2"} if level in ("3", "4") else {}


def rank_env(job: Job, rank: Rank, cluster: bool) -> dict[str, str]:
    """Return the variables that differ from rank to rank."""
    env = {
        **rank.host.env,
        "RANK_ID": str(rank.rank),
        "DEVICE_ID": str(rank.device_id),
        "DEVICE_NUM": str(len(rank.host.devices)),
        "MSLAUNCH_HOST": rank.host.name,
    }
    if cluster:
        env |= {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank.rank)}
    if job.spec.launch.method == "rank-table":
        env["SERVER_ID"] = str(rank.node)
    if rank.cores:
        env["MSLAUNCH_CORES"] = format_ranges(rank.cores)
        if "OMP_NUM_THREADS" not in job.env and "OMP_NUM_THREADS" not in job.facts.environment:
            env["OMP_NUM_THREADS"] = str(len(rank.cores))
    if job.facts.device_target == "Ascend" and "ASCEND_PROCESS_LOG_PATH" not in job.facts.environment:
        env["ASCEND_PROCESS_LOG_PATH"] = job.path(f"rank_{rank.rank}", "plog")
    return env


def _workers(job: Job, cluster: bool, by_script: bool = False) -> tuple[Process, ...]:
    return tuple(
        Process(
            role="worker",
            rank=rank.rank,
            host=rank.host.name,
            device_id=rank.device_id,
            argv=(job.facts.hosts[rank.host.name].python, job.path(BOOT), job.script, *job.args),
            env=rank_env(job, rank, cluster),
            cwd=job.facts.submit_dir if job.spec.launch.cwd == "submit" else job.path(f"rank_{rank.rank}"),
            log=job.path(f"rank_{rank.rank}", "log.txt"),
            start="by-script" if by_script else "now",
        )
        for rank in job.ranks
    )


def _scripted(job: Job, template: str, hosts: tuple[Host, ...], cluster: bool, files: tuple[File, ...] = ()) -> Layout:
    from mslaunch.plan.render import render_script

    env = {**job.env, **(_cluster_env(job) if cluster else {})}
    workers = _workers(job, cluster, by_script=True)
    rendered: list[File] = []
    starters: list[Process] = []
    for node, host in enumerate(hosts):
        name = template if len(hosts) == 1 else f"{node}_{template}"
        content = render_script(template, job, env, node, cluster)
        rendered.append(File(f"scripts/{name}", content, 0o700))
        path = job.path("scripts", name)
        log = job.path("scripts", name.removesuffix(".sh") + ".log")
        starters.append(Process("script", None, host.name, None, ("bash", path), {}, job.facts.run_dir, log))
    schedulers = (_scheduler(job, "by-script"),) if cluster else ()
    return Layout(env, (*starters, *schedulers, *workers), (*rendered, ranks_file(workers, job.facts.run_dir), *files))


def ranks_file(processes: tuple[Process, ...], run_dir: str) -> File:
    """The table beside a script from which each rank takes its own variables, with the run's folder as $run."""
    ranks = {
        str(process.rank): {key: value.replace(run_dir, "$run") for key, value in process.env.items()}
        for process in processes
        if process.rank is not None
    }
    return File(RANKS, json.dumps(ranks, indent=1) + "\n")
