"""Slurm: submitted jobs, allocations that are used as they are, and agents behind one srun step."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.errors import RequestError
from mslaunch.plan.spec import JobSpec, naming_setting
from mslaunch.transports.base import Access, Command, CurrentJob, Facts, JobContext, JobState, Opened, Transport
from mslaunch.transports.cluster_environment import in_slurm_allocation
from mslaunch.transports.registry import BUILT_IN
from mslaunch.transports.slurm import batch_script, queue

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.plan.methods.method import Method
    from mslaunch.plan.model import File, Plan


class SlurmQueue:
    """Slurm's queue of jobs."""

    label = "Slurm"

    def current_job(self, environment: Mapping[str, str]) -> CurrentJob | None:
        if not in_slurm_allocation(environment):
            return None
        job = environment["SLURM_JOB_ID"]
        if environment.get("SLURM_ARRAY_JOB_ID") and environment.get("SLURM_ARRAY_TASK_ID"):
            job = self.member(environment["SLURM_ARRAY_JOB_ID"], int(environment["SLURM_ARRAY_TASK_ID"]))
        return CurrentJob(job, int(environment.get("SLURM_RESTART_COUNT") or 0))

    def files(self, spec: JobSpec, plan: Plan, command: Command) -> list[File]:
        batch_script.check_options(spec, plan.run_dir)
        return batch_script.job_files(spec.launch, plan.hosts, plan.run_dir, command, plan.submit_dir)

    def submit(self, run_dir: Path, secrets: Mapping[str, str] | None = None, /) -> str:
        return queue.submit(run_dir / batch_script.JOB, secrets or {})

    def submit_array(
        self,
        folder: Path,
        members: Mapping[int, Path],
        at_once: int | None,
        secrets: Mapping[str, str] | None = None,
        /,
    ) -> str:
        scripts = {index: run / batch_script.JOB for index, run in members.items()}
        texts = [script.read_text(errors="surrogateescape") for script in scripts.values()]
        script = folder / batch_script.ARRAY
        content = batch_script.array_script(str(folder), scripts, texts, at_once)
        script.write_text(content, errors="surrogateescape")
        script.chmod(0o700)
        return queue.submit(script, secrets or {})

    def member(self, job: str, index: int) -> str:
        return f"{job.partition('_')[0]}_{index}"

    def cancel_array(self, job: str) -> None:
        queue.cancel_array(job)

    def state(self, job: str, since: float | None = None) -> JobState | None:
        return queue.look(job) if since is None else queue.look(job, since)

    def is_queued(self, job: str) -> bool:
        return queue.is_queued(job)

    def find(self, run_id: str) -> str | None:
        return queue.find(run_id)

    def cancel(self, job: str) -> None:
        queue.cancel(job)

    def kill(self, job: str) -> None:
        queue.kill(job)

    def show_command(self, job: str, ended: bool = False) -> str:
        return shlex.join(("sacct" if ended else "squeue", "-j", job))

    def update(self, run_dir: Path, job: str) -> None:
        """The launcher in the job writes to the run's folder, which nodes share."""

    def guard(self, is_kept: bool) -> AbstractContextManager[None]:
        del is_kept
        return nullcontext()  # a job stays in the queue, whatever becomes of its submitter


class SlurmTransport(Transport):
    """Nodes that Slurm chooses: outside an allocation the job is submitted, inside one its nodes are used."""

    name = "slurm"
    label = "Slurm"
    shares_environment = True  # srun --export=ALL
    stops_agents = True  # Slurm sends SIGTERM to all processes of a job ahead of its end
    device_variables = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    devices_advice = "Slurm gives the devices. Leave it out."
    queue = SlurmQueue()

    def check_request(self, job: JobContext) -> None:
        spec = job.spec
        if job.hosts:
            raise RequestError(
                f"{spec.source('transport')}: Slurm chooses the hosts. Leave {naming_setting(spec)} out."
            )
        if not in_slurm_allocation(job.environment):
            return
        for name in BUILT_IN[self.name].own_settings:
            if name != "nodes" and job.is_typed(name):
                flag = spec.source(name)
                raise RequestError(f"{flag} is for jobs that are submitted, and this is inside one. Leave it out.")

    def hosts(self, job: JobContext) -> tuple[Host, ...]:
        from mslaunch.transports.slurm.step import allotted_nodes

        return allotted_nodes(job.environment, job.spec.launch.nodes)

    def planned_hosts(self, job: JobContext) -> tuple[Host, ...]:
        return batch_script.planned_hosts(job.spec)

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        from mslaunch.transports.slurm.step import SrunChannel

        return Opened([SrunChannel(hosts, access.python)], hosts)

    def place(self, job: JobContext, hosts: tuple[Host, ...], facts: Facts, target: str) -> tuple[Host, ...]:
        from mslaunch.transports.slurm.step import allotment

        return batch_script.place(job.spec, hosts, allotment(job.environment, facts, target), target)

    def why_silent(self, hosts: Collection[str]) -> str:
        """A launcher on a login host goes on while Slurm suspends the job's nodes."""
        del hosts
        job = self.queue.current_job(os.environ)
        state = queue.look(job.job_id, since=0.0) if job else None
        return f"Slurm has suspended job {job.job_id}" if job and state and state.word == "SUSPENDED" else ""

    def environment(self, method: Method, hosts: tuple[Host, ...]) -> Mapping[str, str]:
        if not method.reaches_hosts:
            return {}
        # Open MPI counts its slots by this, and an agent's step has one task a node.
        return {"SLURM_TASKS_PER_NODE": ",".join(str(len(host.devices)) for host in hosts)}
