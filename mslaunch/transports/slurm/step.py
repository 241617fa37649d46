"""Slurm from inside an allocation: its nodes and devices, and one srun step for the agents of all of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.shared import wire
from mslaunch.transports.code_bundle import agent_stream
from mslaunch.transports.process import agent_command, why_no_agent
from mslaunch.transports.slurm.batch_script import Allotment, parse_gres, parse_tasks
from mslaunch.transports.slurm.slurm_queue import ask, missing
from mslaunch.transports.streams import Sender, write_fully

_CLOSE_SECONDS = 15.0


class SrunChannel:
    """The agents of all nodes, behind one srun: it broadcasts what they are sent, and labels what they answer."""

    def __init__(self, hosts: Sequence[Host], python: str) -> None:
        self.hosts = tuple(host.name for host in hosts)
        self.hint = "See what `squeue --steps` says."
        self.is_open = True
        self._decoders: dict[bytes, wire.Decoder] = {}
        self._names: dict[bytes, object] = {}
        self._rest = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the channel
        self._process = _start(self.hosts, python, self._stderr.fileno())
        stdin = self._process.stdin
        assert stdin is not None
        # srun does not read before all nodes are there, and nobody should wait for that.
        self._sender = Sender(lambda data: write_fully(stdin.fileno(), data), stdin.close)
        self._sender.send(agent_stream())

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            self.is_open = False
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

    def send(self, message: Mapping[str, object]) -> None:
        self._sender.send(wire.encode(message))

    def flush(self) -> None:
        self._sender.flush()

    def why_it_ended(self) -> str:
        """Say what srun had to say."""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode(errors="replace").splitlines()
        return why_no_agent("\n".join(line for line in lines if "cpu binding" not in line))

    def close(self) -> None:
        self.is_open = False
        self._sender.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSE_SECONDS)


def _start(hosts: tuple[str, ...], python: str, stderr: int) -> subprocess.Popen[bytes]:
    """One task a node, beside whatever else the job runs, with everything that the job has there."""
    count = len(hosts)
    command = ["srun", "--label", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
    command += [f"--nodelist={','.join(hosts)}", "--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL"]
    command += ["--kill-on-bad-exit=0", "--wait=0", "--job-name=mslaunch"]
    try:
        return subprocess.Popen(
            [*command, *agent_command(python, "$SLURMD_NODENAME")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for the launcher
            bufsize=0,
        )
    except FileNotFoundError:
        raise missing("srun") from None


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
