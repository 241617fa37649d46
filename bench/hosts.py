"""How long a job over SSH takes, beside mpirun over the same servers. Every address of the loopback is a host."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator

from bench.failure import RAISES, delay
from bench.measure import MSLAUNCH, Row, medians, seconds, workplace
from tests.ssh_bed import HOSTS, Bed, bed


def many_hosts() -> Iterator[Row]:
    """32 hosts with one rank each that does nothing; the whole command."""
    with workplace(train="") as folder:
        (folder / "ssh").mkdir()
        with bed(folder / "ssh") as made:
            names = [f"n{number}" for number in range(1, HOSTS + 1)]
            addresses = [f"127.0.1.{number}" for number in range(1, HOSTS + 1)]  # mpirun would ask a name server
            mpirun = [str(shutil.which("mpirun")), "--allow-run-as-root", "-np", str(HOSTS), "--bind-to", "none"]
            mpirun += ["--host", ",".join(addresses), "--mca", "plm_rsh_agent", _agent(made), "true"]
            ours = [MSLAUNCH, "train", "--hosts", ",".join(names), "--tail", "none"]
            env = {"HOME": str(made.home)}
            times = medians(
                {
                    "mpirun": lambda: seconds(mpirun, folder),
                    "mslaunch": lambda: seconds(ours, folder, env),
                },
                rounds=3,
            )
    yield Row(
        "no-op job, 32 SSH hosts",
        f"{times['mslaunch']:.2f} s",
        f"mpirun {times['mpirun']:.2f} s",
        times["mslaunch"] / times["mpirun"],
        1.2,
    )


def death_elsewhere() -> Iterator[Row]:
    """A rank raises on the second of two hosts, with two ranks each: how soon is it named, all being stopped?"""
    with workplace(raises=RAISES.replace("== 1", "== 3")) as folder:
        (folder / "ssh").mkdir()
        with bed(folder / "ssh") as made:
            command = [MSLAUNCH, "train", "--hosts", "n1:2,n2:2", "raises.py", "--env", "DIED"]
            ours = statistics.median(delay(command, folder, made.home) for _ in range(5))
    yield Row("death of a rank on host 2 → verdict printed", f"{ours:.2f} s", "", ours, 2.0, "s")


def _agent(made: Bed) -> str:
    """What mpirun calls for ssh: it gives every daemon a folder of its own, since all hosts are this machine."""
    script = made.folder / "agent"
    ssh = f"ssh -p {made.port} -i {made.folder}/id -o UserKnownHostsFile={made.home}/.ssh/known_hosts"
    temporary = f"{made.folder}/tmp-$host"
    script.write_text(f'#!/bin/sh\nhost=$1\nshift\nmkdir -p {temporary}\nexec {ssh} $host TMPDIR={temporary} "$@"\n')
    script.chmod(0o755)
    return str(script)
