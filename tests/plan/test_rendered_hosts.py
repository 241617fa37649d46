"""The scripts that `render` writes for several hosts: those of the plan that `train` makes for the same request."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Bench

HOSTS = "n1:2,n2:[1,3]"


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.write("train.py", "")
    bench.write("cfg.yaml", f'launch:\n  hosts: "{HOSTS}"\n  config_arg: null\n')
    return bench


@pytest.mark.parametrize(
    ("method", "scripts"),
    [
        ("msrun", ["0_msrun.sh", "1_msrun.sh"]),
        ("mpirun", ["mpirun.sh"]),
        ("rank-table", ["0_rank_table.sh", "1_rank_table.sh"]),
    ],
)
def test_every_host_of_the_config_has_its_ranks(job: Bench, method: str, scripts: list[str]) -> None:
    """One script per host where the method needs it, with the line that starts each, and the ranks that train plans."""
    done = job.mslaunch("render", "--method", method, "-c", "cfg.yaml", "-o", "out")
    assert done.returncode == 0, done.stderr
    folder = job.folder / "out" / "scripts"
    assert sorted(path.name for path in folder.glob("*.sh")) == scripts
    hosts = ("n1", "n2")[: len(scripts)]
    assert done.stdout.splitlines() == [
        f"bash {folder / name}    # on {host}" for name, host in zip(scripts, hosts, strict=True)
    ]
    assert "or copy it to the same path of n2" in done.stderr
    planned = job.mslaunch("train", "--method", method, "-c", "cfg.yaml", "--dry-run", "--json", "--run-id", "out")
    assert planned.returncode == 0, planned.stderr
    workers = [one for one in json.loads(planned.stdout)["processes"] if one["role"] == "worker"]
    ranks = json.loads((folder / "ranks.json").read_text())
    expected = {str(one["rank"]): (one["device_id"], one["host"]) for one in workers}
    assert {rank: (int(env["DEVICE_ID"]), env["MSLAUNCH_HOST"]) for rank, env in ranks.items()} == expected
    assert len(ranks) == 4


def test_scripts_of_each_method_know_all_hosts(job: Bench) -> None:
    """msrun has the master and the node's number, mpirun a hostfile, a rank-table script its first rank and devices."""
    texts: dict[str, str] = {}
    for method in ("msrun", "mpirun", "rank-table"):
        done = job.mslaunch("render", "--method", method, "--hosts", HOSTS, "-o", method, "train.py")
        assert done.returncode == 0, done.stderr
        texts |= {path.name: path.read_text() for path in (job.folder / method / "scripts").iterdir()}
    assert "--node_rank=1 " in texts["1_msrun.sh"]
    assert "--worker_num=4 " in texts["1_msrun.sh"]
    assert "--master_addr=n1 " in texts["1_msrun.sh"]
    assert texts["hostfile"] == "n1 slots=2\nn2 slots=2\n"
    assert "mpirun -n 4 " in texts["mpirun.sh"]
    assert "devices=(1 3)\nfirst=2\n" in texts["1_rank_table.sh"]


def test_printed_scripts_name_their_hosts(job: Bench) -> None:
    """Without -o each script has a line with its name and host before it."""
    done = job.mslaunch("render", "--method", "msrun", "-c", "cfg.yaml")
    headings = [line for line in done.stdout.splitlines() if line.startswith("# scripts/")]
    assert headings == ["# scripts/0_msrun.sh, for n1", "# scripts/1_msrun.sh, for n2"]


def test_what_scripts_cannot_do_is_said(job: Bench) -> None:
    """Settings that only mslaunch itself honours are named; several nodes without names are refused."""
    done = job.mslaunch("render", "--method", "msrun", "-n", "2", "--max-restarts", "3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "the scripts leave out launch.max_restarts: they start the job once." in done.stderr
    refused = job.mslaunch("render", "--method", "msrun", "--transport", "slurm", "--nodes", "2", "train.py")
    assert refused.returncode == 2
    assert 'scripts for several nodes need their names. Give --hosts "n1:8,n2:8".' in refused.stderr
