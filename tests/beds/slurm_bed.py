"""A real Slurm on this machine: one controller and two nodes, with munge, ports and folders of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.beds.ssh_bed import free_port

if TYPE_CHECKING:
    from tests.conftest import Bench

SLURM = ("--transport", "slurm", "--nodes", "2", "--workers", "4")
NODES = ("n1", "n2")
CONFIG = """ClusterName=bed
SlurmctldHost={hostname}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={controller}
SlurmdPort={first}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2
ReturnToService=2
KillWait=12
MinJobAge=60
InactiveLimit=0
GresTypes=gpu,npu
JobRequeue=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
"""


def needs_slurm() -> None:
    for program in ("slurmctld", "slurmd", "munged", "srun"):
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
            pytest.skip(f"{program} is not installed (Debian: slurm-wlm and munge)")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own needs root")


class Slurm:
    """The daemons, and the environment that makes Slurm's commands speak to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.env: Mapping[str, str] = {"SLURM_CONF": str(self.config)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.folder.chmod(0o755)
        self._start_munge()
        (self.folder / "state").mkdir()
        hostname = socket.gethostname().split(".")[0]
        ports = [free_port() for _ in NODES]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={hostname} NodeAddr=127.0.1.{name[1:]} Port={port} "
            f"CPUs=4 RealMemory=4000 Gres=gpu:2,npu:2"
            for name, port in zip(NODES, ports, strict=True)
        )
        self.config.write_text(
            CONFIG.format(hostname=hostname, folder=self.folder, controller=free_port(), first=free_port(), nodes=nodes)
        )
        devices = {"gpu": ("null", "zero"), "npu": ("full", "random")}  # any device files will do
        lines = (f"Name={kind} File=/dev/{file} Count=1\n" for kind, files in devices.items() for file in files)
        (self.folder / "gres.conf").write_text("".join(lines))
        self._spawn("slurmctld", "-D", "-i", "-f", str(self.config))
        for name in NODES:
            (self.folder / f"spool-{name}").mkdir()
            self._spawn("slurmd", "-D", "-N", name, "-f", str(self.config))
        self._wait_until_idle()

    def _start_munge(self) -> None:
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o600)
        subprocess.run(["chown", "-R", "munge:munge", str(place)], check=True)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={place / name}" for option, name in files.items()]
        self._spawn("runuser", "-u", "munge", "--", "munged", "--foreground", "--force", *options)

    def _spawn(self, *command: str) -> None:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        program = shutil.which(command[0], path=path)
        assert program
        env = {**os.environ, **self.env, "PATH": path}
        with (self.folder / f"{command[0]}-{len(self._daemons)}.out").open("wb") as log:
            self._daemons.append(subprocess.Popen([program, *command[1:]], env=env, stdout=log, stderr=log))

    def _wait_until_idle(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()
            if states == ["idle"] * len(NODES):
                return
            time.sleep(0.1)
        raise AssertionError(f"Slurm's nodes did not come up; see {self.folder}")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        env = {**os.environ, **self.env}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    def close(self) -> None:
        self.run("scancel", "--state=PENDING", "-u", "root")
        self.run("scancel", "-u", "root")
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Start a Slurm, in a folder that munge's own user may enter too."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        bed = Slurm(Path(folder))
        try:
            bed.start()
            yield bed
        finally:
            bed.close()


def job_of(site: Bench) -> str:
    return (site.latest / "slurm_job").read_text()


def is_running(site: Bench) -> Any:
    """The record of a run whose four ranks have all begun."""
    now = site.record() if (site.runs / "latest" / "run.json").exists() else None
    return now if now and now["state"] == "running" and all(rank["started"] for rank in now["ranks"]) else None
