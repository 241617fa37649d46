"""Slurm: one srun step for the agents of all nodes, and jobs that are submitted, looked up and cancelled."""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mslaunch.agent import wire
from mslaunch.errors import NotReadyError, RequestError
from mslaunch.launch.bundle import AGENT_BOOT, agent_stream
from mslaunch.plan.model import Host
from mslaunch.plan.slurm import Allotment, parse_tasks

_CLOSE_SECONDS = 15.0
_LOOK_EVERY = 2.0
_COMMAND_SECONDS = 60.0


class SrunChannel:
    """The agents of all nodes, behind one srun: it broadcasts what they are sent, and labels what they answer."""

    def __init__(self, hosts: Sequence[Host], python: str) -> None:
        self.hosts = tuple(host.name for host in hosts)
        self.hint = "See what `squeue --steps` says."
        self.is_open = True
        self._decoders: dict[bytes, wire.Decoder] = {}
        self._rest = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- as long as the channel
        self._process = _start(self.hosts, python, self._stderr.fileno())
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # In a thread: srun does not read before all nodes are there, and nobody should wait for that.
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._sender.start()
        self._outgoing.put(agent_stream())

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            self.is_open = False
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages = []
        for line in lines:
            label, found, text = line.partition(b": ")
            if found and label.strip().isdigit():
                messages += self._decoders.setdefault(label.strip(), wire.Decoder()).feed(text)
        return messages

    def send(self, message: dict[str, Any]) -> None:
        self._outgoing.put(wire.encode(message))

    def _send_all(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(OSError), stdin:  # its end shows on the other stream
            while data := self._outgoing.get():
                view = memoryview(data)
                while view:
                    view = view[stdin.write(view) or 0 :]

    def last_words(self) -> str:
        """What srun had to say."""
        self._stderr.seek(0)
        lines = self._stderr.read(1 << 16).decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if "cpu binding" not in line)

    def close(self) -> None:
        self.is_open = False
        self._outgoing.put(b"")
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
            [*command, python, "-I", "-S", "-u", "-c", AGENT_BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C is for the launcher
            bufsize=0,
        )
    except FileNotFoundError:
        raise _missing("srun") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """How Slurm sees a job: its word for the state, and why it waits."""

    state: str
    reason: str = ""


def in_allocation(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("SLURM_JOB_ID") and environment.get("SLURM_JOB_NODELIST"))


def allotted_nodes(environment: Mapping[str, str], wanted: int | None) -> tuple[Host, ...]:
    """Return the nodes of the job that we are in, with their addresses and no devices yet."""
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise RequestError(
            "srun has started mslaunch more than once, and each would launch the whole job. Leave srun out: mslaunch "
            "calls it itself."
        )
    listed = environment["SLURM_JOB_NODELIST"]
    names = _ask("scontrol", "show", "hostnames", listed).split()
    if wanted is not None and wanted > len(names):
        raise RequestError(f"--nodes: {wanted} are asked for, and this Slurm job has {len(names)}. Ask for fewer.")
    nodes = _ask("scontrol", "show", "nodes", "--oneliner", listed)
    addresses = dict(re.findall(r"^NodeName=(\S+) .*?\bNodeAddr=(\S+)", nodes, re.MULTILINE))
    return tuple(Host(name, _resolved(addresses.get(name, name)), ()) for name in names[:wanted])


def _resolved(address: str) -> str:
    try:
        return socket.gethostbyname(address)
    except OSError:
        return address


def allotment(environment: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]], target: str) -> Allotment:
    """Read how many tasks the job was asked to run, and which devices its nodes were given."""
    tasks = parse_tasks(environment.get("SLURM_TASKS_PER_NODE", "")) if "SLURM_NTASKS" in environment else ()
    devices = {name: tuple(found["gpus"]) for name, found in facts.items() if found["gpus"]}
    if target == "GPU":  # CUDA_VISIBLE_DEVICES names them already: they are counted from 0 within it
        devices = {name: tuple(range(len(ids))) if facts[name]["renumbered"] else ids for name, ids in devices.items()}
    return Allotment(tasks, devices)


def submit(script: str) -> str:
    """Hand a script to sbatch; return the job's id."""
    return _ask("sbatch", "--parsable", script).strip().split(";")[0]


_looked: dict[str, tuple[float, Seen | None]] = {}


def look(job: str) -> Seen | None:
    """Ask how a job stands: squeue for those that are there, sacct for those that were, if there is accounting.

    None where Slurm cannot be asked; a job that it no longer knows is UNKNOWN.
    """
    when, seen = _looked.get(job, (0.0, None))
    if not when or time.monotonic() - when > _LOOK_EVERY:
        seen = _look(job)
        _looked[job] = (time.monotonic(), seen)
    return seen


def _look(job: str) -> Seen | None:
    queued = _try("squeue", "--noheader", "--states=all", "--format=%T|%r", f"--jobs={job}")
    if queued is None:
        return None
    if queued.returncode == 0 and (line := queued.stdout.strip()):
        state, _, reason = line.splitlines()[0].partition("|")
        return Seen(state, reason)
    if queued.returncode != 0 and "Invalid job id" not in queued.stderr:
        return None  # the controller does not answer
    ended = _try("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State")
    words = ended.stdout.split() if ended is not None and ended.returncode == 0 else []
    return Seen(words[0] if words else "UNKNOWN")


def cancel(job: str) -> None:
    """Ask a job to end: its launcher is told, and stops its ranks in order; one that waits is taken off the queue."""
    _looked.pop(job, None)
    seen = look(job)
    waiting = seen is None or seen.state == "PENDING"
    done = _try("scancel", job) if waiting else _try("scancel", "--batch", "--signal=TERM", job)
    if done is None:
        raise _missing("scancel")
    if done.returncode != 0:
        raise NotReadyError(f"scancel {job}: {_last_line(done.stderr)}")


def kill(job: str) -> None:
    """End a job that does not end when it is asked to."""
    _try("scancel", job)


def _ask(*command: str) -> str:
    done = _try(*command)
    if done is None:
        raise _missing(command[0])
    if done.returncode != 0:
        said = _last_line(done.stderr) or f"it ended with code {done.returncode}"
        raise NotReadyError(f"{command[0]} refuses: {said.removeprefix(f'{command[0]}: ').removeprefix('error: ')}")
    return done.stdout


def _try(*command: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_COMMAND_SECONDS
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None


def _missing(program: str) -> NotReadyError:
    return NotReadyError(f"{program} is not on PATH or does not answer. --transport slurm needs Slurm's commands here.")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
