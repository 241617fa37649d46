"""The processes of a job and their variables; methods of plug-ins use these functions too."""

from __future__ import annotations

import json
import posixpath

from mslaunch.plan.methods.method import PlacedJob, Rank
from mslaunch.plan.model import File, Process
from mslaunch.plan.variables import is_identity
from mslaunch.ranges import format_ranges
from mslaunch.shared import layout
from mslaunch.shared.messages import Start


def job_env(job: PlacedJob) -> dict[str, str]:
    """Return the variables of all processes: the job's, and those by which they find MindSpore's scheduler."""
    if not job.has_scheduler:
        return dict(job.env)
    return {
        **job.env,
        "MS_SCHED_HOST": job.hosts[0].address,
        "MS_SCHED_PORT": str(job.facts.port),
        "MS_WORKER_NUM": str(job.world_size),
    }


def scheduler_process(job: PlacedJob, start: Start) -> Process:
    """Return MindSpore's scheduler, on the first host."""
    host = job.hosts[0].name
    env = {"MS_ROLE": "MS_SCHED", "RANK_ID": "0"}
    # A port that is taken is only a warning to MindSpore: the scheduler has to write those, whatever the ranks do.
    if (job.env.get("GLOG_v") or job.facts.environment.get("GLOG_v")) in ("3", "4"):
        env["GLOG_v"] = "2"
    return Process(
        role="scheduler",
        rank=None,
        host=host,
        device_id=None,
        argv=(job.facts.hosts[host].python, job.path(layout.BOOT)),
        env=env,
        cwd=job.facts.run_dir,
        log=job.path(layout.SCHEDULER, layout.LOG),
        start=start,
    )


def rank_env(job: PlacedJob, rank: Rank) -> dict[str, str]:
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
    if job.has_scheduler:
        env |= {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank.rank)}
    if job.spec.method.needs_rank_table:
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
    # The user's values override all this. They are written again here, since msrun and the scripts set some of these.
    own_env = {**job.spec.launch.env, **rank.host.env}
    for name in (*env, *rank.host.env):
        if is_identity(name):
            continue
        text = own_env.get(name, env.get(name))
        if text is None:
            env.pop(name, None)  # it reaches the rank as a secret
        else:
            env[name] = text
    return env


def worker_processes(job: PlacedJob, start: Start = "now") -> tuple[Process, ...]:
    """Return one process per rank, in the order of ranks."""
    command, processes = job.command, []
    for rank in job.ranks:
        cwd, log = job.facts.submit_dir, job.path(layout.rank_folder(rank.rank), layout.LOG)
        if job.spec.launch.cwd != "submit":
            cwd = posixpath.normpath(job.path(layout.work_folder(rank.rank), job.facts.workdir))
        process = Process(
            role="worker",
            rank=rank.rank,
            host=rank.host.name,
            device_id=rank.device_id,
            argv=(job.facts.hosts[rank.host.name].python, job.path(layout.BOOT), *command),
            env=rank_env(job, rank),
            cwd=cwd,
            log=log,
            start=start,
        )
        processes.append(process)
    return tuple(processes)


def ranks_file(processes: tuple[Process, ...], run_dir: str) -> File:
    """The table beside a script from which each rank takes its own variables, with the run's folder as $run."""
    ranks = {
        str(process.rank): {key: value.replace(run_dir, "$run") for key, value in process.env.items()}
        for process in processes
        if process.rank is not None
    }
    return File(layout.RANKS, json.dumps(ranks, indent=1) + "\n")
