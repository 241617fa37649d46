"""The four methods over real SSH, with real MindSpore and real mpirun."""

from __future__ import annotations

import pytest

from tests.beds import ssh_bed
from tests.beds.ssh_bed import FAILS, SLEEP
from tests.conftest import Bench, wait_for

ADD_UP = """
import mindspore as ms
from mindspore.communication import get_rank, init
ms.set_context(device_target="CPU", mode=ms.PYNATIVE_MODE)
init()
print("sum", ms.ops.AllReduce()(ms.Tensor([get_rank() + 1.0], ms.float32)).asnumpy()[0])
"""


@pytest.mark.mindspore
def test_allreduce_over_two_hosts(far: Bench) -> None:
    """Two hosts with two ranks each add up."""
    far.write("train.py", ADD_UP)
    done = far.mslaunch("train", "--hosts", "n1:2,n2:2")
    assert done.returncode == 0, done.stdout
    assert all("sum 10.0" in far.log(rank) for rank in range(4))


@pytest.mark.mindspore
@pytest.mark.parametrize("method", ["msrun", "rank-table"])
def test_the_scripts_of_other_methods_run_on_every_host(far: Bench, hosts: ssh_bed.Bed, method: str) -> None:
    """One script a host, with its node's number; msrun tells its master by address, so the second host is apart."""
    far.write("train.py", ADD_UP)
    with ssh_bed.cut_off(hosts, "second"):
        done = far.mslaunch("train", "--hosts", "here:1,second:1", "--method", method)
    assert done.returncode == 0, done.stdout
    assert all("sum 3.0" in far.log(rank) for rank in range(2))


@pytest.fixture
def open_mpi(far: Bench, hosts: ssh_bed.Bed, needs_mpirun: None) -> Bench:
    """Open MPI calls ssh by itself, on the first host: it needs the same keys and names there."""
    del needs_mpirun
    ssh = f"ssh -F {hosts.home}/.ssh/config -o UserKnownHostsFile={hosts.home}/.ssh/known_hosts"
    far.env["OMPI_MCA_plm_rsh_agent"] = ssh
    return far


@pytest.mark.mindspore
def test_mpirun_reaches_the_other_hosts_itself(open_mpi: Bench) -> None:
    open_mpi.write("train.py", ADD_UP)
    done = open_mpi.mslaunch("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    assert done.returncode == 0, done.stdout
    assert all("sum 10.0" in open_mpi.log(rank) for rank in range(4))
    assert [rank["exit_code"] for rank in open_mpi.record()["ranks"]] == [0] * 4


def test_a_rank_that_mpirun_started_elsewhere_is_named(open_mpi: Bench) -> None:
    open_mpi.write("train.py", FAILS)
    done = open_mpi.mslaunch("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    assert done.returncode == 1
    assert "First to fail: rank 3, host n2, device 1 (exit code 1)" in done.stdout


def test_mpirun_over_hosts_leaves_nothing_when_the_launcher_is_killed(open_mpi: Bench) -> None:
    open_mpi.write("train.py", SLEEP)
    launcher = open_mpi.start("train", "--hosts", "n1:2,n2:2", "--method", "mpirun")
    wait_for(lambda: all("rank" in open_mpi.log(rank) for rank in range(4)), "all ranks")
    launcher.kill()
    wait_for(lambda: not open_mpi.leftovers(), "every process to end")
