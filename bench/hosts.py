"""How long a job over SSH takes, beside mpirun over the same servers. Every address of the loopback is a host."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from bench.measure import MSLAUNCH, Row, medians, seconds, workplace
from tests.ssh_bed import HOSTS, bed


def many_hosts() -> Iterator[Row]:
    """32 hosts with one rank each that does nothing; the whole command."""
    with workplace(train="") as folder:
        (folder / "ssh").mkdir()
        with bed(folder / "ssh") as made:
            names = [f"n{number}" for number in range(1, HOSTS + 1)]
            ssh = f"ssh -F {made.home}/.ssh/config -o UserKnownHostsFile={made.home}/.ssh/known_hosts"
            mpirun = [str(shutil.which("mpirun")), "--allow-run-as-root", "-np", str(HOSTS), "--bind-to", "none"]
            mpirun += ["--host", ",".join(names), "--mca", "plm_rsh_agent", ssh, "true"]
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
