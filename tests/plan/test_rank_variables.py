"""The variables of a rank: those of msrun and those of torchrun, by every method, and whose value wins."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mslaunch.hosts import Host
from mslaunch.plan.make import make_plan
from mslaunch.plan.methods import METHODS
from mslaunch.plan.model import Checkpoints
from mslaunch.plan.next_attempt import next_attempt, resuming
from mslaunch.plan.variables import TUNABLE
from mslaunch.settings.environment import VARIABLES
from tests.conftest import Bench
from tests.plan.test_make import facts_of, plan_of, spec_of

PRINT_ENV = "import os, json\nprint(json.dumps(dict(os.environ)))\n"
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR")


@pytest.mark.usefixtures("needs_mpirun")
@pytest.mark.parametrize("method", ["dynamic", "msrun", "mpirun", "rank-table"])
def test_every_method_sets_torchruns_variables(bench: Bench, method: str) -> None:
    """A script that was written for torchrun finds what it looks for."""
    bench.write("train.py", PRINT_ENV)
    shell = {"RANK": "7", "WORLD_SIZE": "9", "MASTER_ADDR": "n7", "MASTER_PORT": "1"}
    done = bench.mslaunch("train", "-n", "2", "--tail", "none", "--method", method, **shell)
    assert done.returncode == 0, done.stdout
    assert "not passed on to the ranks, since another launcher or the shell had set them: MASTER_ADDR," in done.stdout
    for rank in (0, 1):
        seen = json.loads(bench.log(rank))
        assert [seen[name] for name in TORCHRUN] == [str(rank), "2", str(rank), "2", "0", "0", "127.0.0.1"]
        assert seen["MASTER_PORT"] != "1"


@pytest.mark.parametrize("method", METHODS)
def test_every_variable_of_a_rank_has_a_row(method: str) -> None:
    """VARIABLES, which the documentation shows, names what a plan sets, and a plan sets what is for every method."""
    config = "launch:\n  shared: [data]\n  env: {A_TOKEN: x}\n"
    files = Checkpoints(("a.ckpt", "b.ckpt"))
    spec = replace(spec_of(config, workers=2, method=method, bind_cores=True), checkpoints=files)
    plan = plan_of(spec, workdir="sub")
    names = {*plan.env, *resuming(plan, {0: "a.ckpt"}).workers[0].env} - TUNABLE
    rows = {row.name: row for row in VARIABLES if row.meaning}
    assert names - rows.keys() == set()
    assert {name for name, row in rows.items() if row.setter == "every method"} - names == set()


def test_hosts_count_local_ranks_from_zero() -> None:
    """NODE_RANK is the host's number, LOCAL_RANK counts on each host, MASTER_ADDR is the first host."""
    hosts = (Host("n1", "10.0.0.1", (0, 1)), Host("n2", "10.0.0.2", (4,)))
    plan = make_plan(spec_of(workers=3), hosts, facts_of(hosts))
    assert [
        (w.env["RANK"], w.env["LOCAL_RANK"], w.env["NODE_RANK"], w.env["LOCAL_WORLD_SIZE"]) for w in plan.workers
    ] == [
        ("0", "0", "0", "2"),
        ("1", "1", "0", "2"),
        ("2", "0", "1", "1"),
    ]
    assert (plan.env["MASTER_ADDR"], plan.env["WORLD_SIZE"]) == ("10.0.0.1", "3")


def test_a_store_of_rank_0_can_listen_at_master_port(bench: Bench) -> None:
    """MASTER_PORT is free though MindSpore's scheduler has a port too; so it is in the next attempt."""
    bench.write(
        "train.py",
        "import os, socket\nwith socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))):\n"
        "    assert os.environ['MASTER_PORT'] != os.environ['MS_SCHED_PORT']\n",
    )
    assert bench.mslaunch("train", "-n", "1").returncode == 0
    plan = plan_of(spec_of(workers=1))
    assert plan.env["MASTER_PORT"] == str(plan.port + 1)
    assert next_attempt(plan, 30000).env["MASTER_PORT"] == "30001"


def test_what_the_user_gives_wins(bench: Bench) -> None:
    """Also over what differs from rank to rank, and after a restart."""
    bench.write("train.py", PRINT_ENV)
    mine = {
        "MASTER_PORT": "4711",
        "MASTER_ADDR": "n9",
        "RANK_TABLE_FILE": "/t.json",
        "DEVICE_ID": "5",
        "NODE_RANK": "3",
    }
    flags = [f"--env={name}={value}" for name, value in mine.items()]
    done = bench.mslaunch("train", "-n", "2", "--tail", "none", "--method", "rank-table", *flags)
    assert done.returncode == 0, done.stdout
    seen = json.loads(bench.log(1))
    assert {name: seen[name] for name in mine} == mine
    plan = plan_of(spec_of(workers=1, env={"MASTER_PORT": "4711"}))
    assert next_attempt(plan, 30000).env["MASTER_PORT"] == "4711"


def test_a_hosts_own_variables_win_there() -> None:
    """launch.hosts[].env outweighs what mslaunch sets, except what makes a rank that rank."""
    host = Host("n1", "10.0.0.1", (0,), env={"DEVICE_ID": "6", "RANK_ID": "9"})
    (worker,) = make_plan(spec_of(workers=1), (host,), facts_of((host,))).workers
    assert (worker.env["DEVICE_ID"], worker.env["RANK_ID"]) == ("6", "0")


@pytest.mark.parametrize(
    "name", ["RANK_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MS_ROLE", "MS_SCHED_PORT", "MSLAUNCH_X"]
)
def test_what_makes_a_rank_that_rank_is_refused(bench: Bench, name: str) -> None:
    """With one value for all ranks no job could work."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", "-n", "1", "--env", f"{name}=0")
    assert done.returncode == 2
    assert f"--env: {name} is what mslaunch sets for each rank." in done.stderr
