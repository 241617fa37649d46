"""Slurm: submitted jobs, allocations that are used as they are, and agents behind one srun step."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from mslaunch.errors import RequestError
from mslaunch.plan.spec import naming_setting
from mslaunch.transports.base import Access, Facts, JobContext, Opened, Transport
from mslaunch.transports.cluster_environment import in_slurm_allocation
from mslaunch.transports.registry import BUILT_IN
from mslaunch.transports.slurm import batch_script
from mslaunch.transports.slurm.slurm_queue import SlurmQueue
from mslaunch.transports.slurm.step import SrunChannel, allotment, allotted_nodes

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.plan.methods.method import Method


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
                f"{spec.sources['transport']}: Slurm chooses the hosts. Leave {naming_setting(spec)} out."
            )
        if not in_slurm_allocation(job.environment):
            return
        for name in BUILT_IN[self.name].own_settings:
            if name != "nodes" and job.is_typed(name):
                flag = spec.sources[name]
                raise RequestError(f"{flag} is for jobs that are submitted, and this is inside one. Leave it out.")

    def hosts(self, job: JobContext) -> tuple[Host, ...]:
        return allotted_nodes(job.environment, job.spec.launch.nodes)

    def planned_hosts(self, job: JobContext) -> tuple[Host, ...]:
        return batch_script.planned_hosts(job.spec)

    def open(self, hosts: tuple[Host, ...], access: Access) -> Opened:
        return Opened([SrunChannel(hosts, access.python)], hosts)

    def place(self, job: JobContext, hosts: tuple[Host, ...], facts: Facts, target: str) -> tuple[Host, ...]:
        return batch_script.place(job.spec, hosts, allotment(job.environment, facts, target), target)

    def why_silent(self, hosts: Collection[str]) -> str:
        """A launcher on a login host goes on while Slurm suspends the job's nodes."""
        del hosts
        job = self.queue.current_job(os.environ)
        if job is None:
            return ""
        state = self.queue.state(job.job_id, since=0.0)
        return f"Slurm has suspended job {job.job_id}" if state and state.word == "SUSPENDED" else ""

    def environment(self, method: Method, hosts: tuple[Host, ...]) -> Mapping[str, str]:
        if not method.reaches_hosts:
            return {}
        # Open MPI counts its slots by this, and an agent's step has one task a node.
        return {"SLURM_TASKS_PER_NODE": ",".join(str(len(host.devices)) for host in hosts)}
