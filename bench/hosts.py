"""How long a job over SSH takes, beside mpirun over the same servers. Every address of the loopback is a host."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.failure import RAISES, delay
from bench.measure import MSLAUNCH, Row, medians, own_cpu, seconds, workplace
from tests.beds.ssh_bed import Bed, address, bed

LIMITS = {32: 1.2, 64: 0.8}
MOST_HOSTS = 250


def many_hosts() -> Iterator[Row]:
    """Hosts with one rank each that does nothing; the whole command, and the launcher's own CPU time for a host."""
    with workplace(train="") as folder, _bed(folder, max(LIMITS)) as made:
        for count, limit in LIMITS.items():
            times = medians(
                {
                    "mpirun": partial(_patient, _mpirun(made, count), folder),
                    "mslaunch": partial(seconds, _ours(count), folder, {"HOME": str(made.home)}),
                },
                rounds=3,
            )
            yield Row(
                f"no-op job, {count} SSH hosts",
                f"{times['mslaunch']:.2f} s",
                f"mpirun {times['mpirun']:.2f} s",
                times["mslaunch"] / times["mpirun"],
                limit,
            )
        few, many = 2, max(LIMITS)
        used = medians(
            {count: partial(own_cpu, _ours(count), folder, {"HOME": str(made.home)}) for count in (few, many)}, rounds=3
        )
        each = (used[many] - used[few]) / (many - few) * 1000
        yield Row("launcher's own CPU time for an SSH host", f"{each:.1f} ms", "", each, 8.0, "ms")


def most_hosts() -> Iterator[Row]:
    """As many hosts as a large job has, once: it raises where the job fails."""
    with workplace(train="") as folder, _bed(folder, MOST_HOSTS) as made:
        taken = seconds(_ours(MOST_HOSTS), folder, {"HOME": str(made.home)})
    each = taken / MOST_HOSTS * 1000
    yield Row(f"no-op job, {MOST_HOSTS} SSH hosts, for each", f"{taken:.1f} s", "", each, 500.0, "ms")


@contextmanager
def _bed(folder: Path, hosts: int) -> Iterator[Bed]:
    (folder / "ssh").mkdir()
    with bed(folder / "ssh", hosts) as made:
        yield made


def _patient(command: list[str], folder: Path) -> float:
    """Time mpirun, which fails or hangs now and then with 64 hosts on one machine."""
    for _ in range(3):
        with suppress(subprocess.SubprocessError):
            return seconds(command, folder, limit=60.0)
    raise RuntimeError("mpirun failed three times")


def _ours(hosts: int) -> list[str]:
    names = ",".join(f"n{number}" for number in range(1, hosts + 1))
    return [MSLAUNCH, "train", "--hosts", names, "--tail", "none"]


def _mpirun(made: Bed, hosts: int) -> list[str]:
    addresses = ",".join(address(number) for number in range(1, hosts + 1))  # a name would be looked up
    command = [str(shutil.which("mpirun")), "--allow-run-as-root", "-np", str(hosts), "--bind-to", "none"]
    return [*command, "--host", addresses, "--mca", "plm_rsh_agent", _agent(made), "true"]


def death_elsewhere() -> Iterator[Row]:
    """A rank raises on the second of two hosts, with two ranks each: how soon is it named, all being stopped?"""
    with workplace(raises=RAISES.replace("== 1", "== 3")) as folder, _bed(folder, 2) as made:
        command = [MSLAUNCH, "train", "--hosts", "n1:2,n2:2", "--env", "DIED", "raises.py"]
        ours = statistics.median(delay(command, folder, made.home) for _ in range(5))
    yield Row("death of a rank on host 2 → verdict printed", f"{ours:.2f} s", "", ours, 2.0, "s")


def _agent(made: Bed) -> str:
    """What mpirun calls for ssh: it gives every daemon a folder of its own, since all hosts are this machine."""
    script = made.folder / "agent"
    ssh = f"ssh -p {made.port} -i {made.folder}/id -o UserKnownHostsFile={made.home}/.ssh/known_hosts"
    temporary = f"{made.folder}/tmp-$host"  # what the last run left there makes orted crash now and then
    fresh = f"rm -rf {temporary}\nmkdir -p {temporary}"
    script.write_text(f'#!/bin/sh\nhost=$1\nshift\n{fresh}\nexec {ssh} $host TMPDIR={temporary} "$@"\n')
    script.chmod(0o755)
    return str(script)
