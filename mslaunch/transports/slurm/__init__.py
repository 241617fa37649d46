"""Slurm: submitted jobs, allocations that are used as they are, and agents behind one srun step."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan.spec import naming_setting
from mslaunch.shared import wire
from mslaunch.transports.base import Access, Facts, JobContext, Opened, Transport
from mslaunch.transports.cluster_environment import in_slurm_allocation
from mslaunch.transports.code_bundle import agent_stream
from mslaunch.transports.process import CLOSE_SECONDS, ProcessChannel, agent_command, start_process, why_no_agent
from mslaunch.transports.registry import BUILT_IN
from mslaunch.transports.slurm import batch_script
from mslaunch.transports.slurm.batch_script import Allotment, parse_gres, parse_tasks
from mslaunch.transports.slurm.slurm_queue import SlurmQueue, ask, missing

if TYPE_CHECKING:
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


class SrunChannel(ProcessChannel):
    """The agents of all nodes, behind one srun: it broadcasts what they are sent, and labels what they answer."""

    def __init__(self, hosts: Sequence[Host], python: str) -> None:
        """Start one task a node, beside whatever else the job runs, with everything that the job has there."""
        names, count = tuple(host.name for host in hosts), len(hosts)
        command = ["srun", "--label", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
        command += [f"--nodelist={','.join(names)}", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"]
        command += ["--kill-on-bad-exit=0", "--wait=0", "--job-name=mslaunch"]
        try:
            process, stderr = start_process([*command, *agent_command(python, "$SLURMD_NODENAME")])
        except FileNotFoundError:
            raise missing("srun") from None
        super().__init__(names[0], process, agent_stream(), stderr, "See what `squeue --steps` says.")
        self.hosts = names
        self._decoders: dict[bytes, wire.Decoder] = {}
        self._names: dict[bytes, object] = {}
        self._rest = b""

    def receive(self) -> list[dict[str, Any]] | None:
        data = self.read()
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages: list[dict[str, Any]] = []
        for line in lines:
            label, separator, text = line.partition(b": ")
            if separator and label.strip().isdigit():
                messages += self._take_apart(label.strip(), text)
        return messages

    def _take_apart(self, label: bytes, text: bytes) -> list[dict[str, Any]]:
        """Decode what one agent sent; it speaks for the host that its first message has named, and for no other."""
        messages = self._decoders.setdefault(label, wire.Decoder()).feed(text)
        for index, message in enumerate(messages):
            if isinstance(message, wire.UnreadableRecord):
                continue
            if self._names.setdefault(label, message.get("host")) != message.get("host"):
                name, other = (str(host)[:64] for host in (self._names[label], message.get("host")))
                return [*messages[:index], wire.UnreadableRecord(f"an event of {other!r} from {name!r}")]
        return messages

    def why_it_ended(self) -> str:
        """Say what srun had to say."""
        lines = self.error_output().splitlines()
        return why_no_agent("\n".join(line for line in lines if "cpu binding" not in line))

    def close(self) -> None:
        self.is_open = True  # also where one host is lost, the others are waited for
        super().close()

    def _end_process(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS)
        super()._end_process()


def allotted_nodes(environment: Mapping[str, str], count: int | None) -> tuple[Host, ...]:
    """Return the nodes of the job that we are in, with their addresses and no devices yet."""
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        raise RequestError(
            "srun has started mslaunch more than once, and each would launch the whole job. Leave srun out: mslaunch "
            "calls it itself."
        )
    listed = environment["SLURM_JOB_NODELIST"]
    names = ask("scontrol", "show", "hostnames", listed).split()
    if count is not None and count > len(names):
        raise RequestError(f"--nodes: {count} are asked for, and this Slurm job has {len(names)}. Ask for fewer.")
    nodes = ask("scontrol", "show", "nodes", "--oneliner", listed)
    addresses = dict(re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", nodes, re.MULTILINE))
    return tuple(Host(name, _resolved(addresses.get(name, name)), ()) for name in names[:count])


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError:
        return address


def _granted(environment: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Ask which devices each node was granted: for others than GPUs Slurm sets no variable."""
    description = ask("scontrol", "show", "job", "-d", environment["SLURM_JOB_ID"])
    granted: dict[str, tuple[int, ...]] = {}
    for nodes, gres in re.findall(r"^\s+Nodes=(\S+) .*\bGRES=(\S+)", description, re.MULTILINE):
        if devices := parse_gres(gres):
            granted |= dict.fromkeys(ask("scontrol", "show", "hostnames", nodes).split(), devices)
    return granted


def allotment(environment: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]], target: str) -> Allotment:
    """Read how many tasks the job was asked to run, and which devices its nodes were given."""
    tasks = parse_tasks(environment.get("SLURM_TASKS_PER_NODE", "")) if "SLURM_NTASKS" in environment else ()
    devices = {name: tuple(answers["gpus"]) for name, answers in facts.items() if answers["gpus"]} or _granted(
        environment
    )
    return Allotment(tasks, {name: _as_seen(ids, facts[name]["limits"].get(target)) for name, ids in devices.items()})


def _as_seen(granted: tuple[int, ...], limit: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Give granted devices the numbers that ranks see, where a variable has them counted from 0."""
    if limit is None:
        return granted
    return tuple(number for number, file in enumerate(limit["files"]) if file is None or file in granted)
