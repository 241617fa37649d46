"""Lines that were written for msrun or torchrun work as they are, and what cannot work says what to do instead."""

from __future__ import annotations

import json
import re

import pytest

from mslaunch.cli.parsing.msrun_options import MSRUN, TORCHRUN, Table, translate
from mslaunch.errors import RequestError
from tests.beds.ssh_bed import free_port
from tests.conftest import ROOT, Bench

OURS = dict.fromkeys(
    (
        *("--workers", "--local_worker_num", "--master-port", "--runs-dir", "--env", "--tail", "--max-restarts"),
        *("--nnodes", "--node-rank", "--master"),
    ),
    True,
) | dict.fromkeys(("--detach", "--bind-cores", "--no-bind-cores", "--numa", "--no-numa"), False)
SHOW = "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"


@pytest.mark.parametrize(
    ("table", "typed", "meant"),
    [
        (MSRUN, "--worker_num=4 --local_worker_num 4", "--workers=4 --local_worker_num=4"),
        (MSRUN, "--master_addr=10.0.0.1 --node_rank=1 --sim_level=-1", "--master=10.0.0.1 --node-rank=1"),
        (MSRUN, "--node_rank=-1", ""),
        (MSRUN, "--join=True --cluster_time_out=300", "--env=MS_TOPO_TIMEOUT=300"),
        (MSRUN, "--join=False", "--detach"),
        (MSRUN, "--bind_core=True --bind_numa=False", "--bind-cores --no-numa"),
        (MSRUN, "--tail_worker_log=-1", "--tail=all"),
        (MSRUN, "--tail_worker_log=0,1", "--tail=0,1"),
        (MSRUN, "--sim_level=1", "--env=MS_SIMULATION_LEVEL=1"),
        (TORCHRUN, "--nproc-per-node 2 --nnodes=1 --standalone", "--local_worker_num=2"),
        (TORCHRUN, "--nproc_per_node=2 --nnodes 1:1 --max_restarts=3", "--local_worker_num=2 --max-restarts=3"),
        (TORCHRUN, "--nnodes 2:4 --node-rank 0", "--nnodes=2:4 --node-rank=0"),
        (TORCHRUN, "--rdzv_endpoint=n1:29400", "--master=n1:29400"),
        (TORCHRUN, "--log-dir out -t 3 --no-python", "--runs-dir=out --tail=all"),
        (TORCHRUN, "--master-port=29500 --master-addr localhost", "--env=MASTER_PORT=29500 --master=localhost"),
    ],
)
def test_options_are_translated(table: Table, typed: str, meant: str) -> None:
    """Each becomes an option of mslaunch, or nothing; what follows the program is left alone."""
    tail = ["train.py", "--worker_num", "--nnodes", "9"]
    done = translate([*typed.split(), *tail], table, OURS, ours_first=False)
    assert done.words == (*meant.split(), *tail)
    assert done.notes == ()


@pytest.mark.parametrize(
    ("table", "typed", "why"),
    [
        (MSRUN, "--worker_log_name=worker_", "the log of rank R is rank_R/log.txt"),
        (TORCHRUN, "--rdzv-backend=c10d", "MindSpore's scheduler"),
        (TORCHRUN, "--redirects=3", "rank_R/log.txt"),
    ],
)
def test_an_option_without_meaning_is_said_in_one_line(table: Table, typed: str, why: str) -> None:
    """With the reason."""
    done = translate([typed, "train.py"], table, OURS, ours_first=False)
    assert done.words == ("train.py",)
    assert len(done.notes) == 1
    assert done.notes[0].startswith(f"{typed} has no meaning here: ")
    assert why in done.notes[0]


@pytest.mark.parametrize(
    ("table", "typed", "instead"),
    [
        (MSRUN, "--sim_rank_id=3", "RANK_ID=3 python train.py"),
        (MSRUN, "--bind_core={", "write True, False, or which cores"),
        (MSRUN, '--bind_core={"0": 3}', "write True, False, or which cores"),
        (MSRUN, "--worker_num", "its value is missing"),
        (TORCHRUN, "--nproc-per-node=many", "write a number, auto, gpu or cpu"),
        (TORCHRUN, "--run-path", "name the script as it is"),
    ],
)
def test_what_cannot_be_done_says_what_to_do_instead(table: Table, typed: str, instead: str) -> None:
    """One sentence, with the option in front."""
    with pytest.raises(RequestError, match=re.escape(typed.partition("=")[0])) as refused:
        translate([typed], table, OURS, ours_first=False)
    assert instead in str(refused.value)


@pytest.mark.parametrize("verb", ["train", "msrun"])
def test_a_pasted_msrun_line_works(bench: Bench, verb: str) -> None:
    """All of msrun's options at once, and the script's own behind the script."""
    bench.write("train.py", SHOW)
    port = free_port()
    line = (
        f"--worker_num=2 --local_worker_num=2 --master_addr=127.0.0.1 --master_port={port} --node_rank=0 --log_dir=out "
        "--join=True --cluster_time_out=300 --bind_core=True --tail_worker_log=0 --worker_log_name=worker_ "
        "--sim_level=0"
    )
    done = bench.mslaunch(verb, *line.split(), "train.py", "--lr", "0.1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "--worker_log_name=worker_ has no meaning here" in done.stdout
    args, env = json.loads((bench.folder / "out" / "latest" / "rank_1" / "log.txt").read_text())
    assert args == ["--lr", "0.1"]
    wanted = {"MS_TOPO_TIMEOUT": "300", "MS_SIMULATION_LEVEL": "0", "MS_SCHED_PORT": str(port), "RANK_SIZE": "2"}
    assert {name: env[name] for name in wanted} == wanted


def test_msruns_default_is_eight_ranks(bench: Bench) -> None:
    """torchrun's is one; a number that is given counts."""
    bench.write("train.py", "")

    def size(*words: str) -> int:
        done = bench.mslaunch(*words, "--dry-run", "--json", "train.py")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["world_size"])

    assert size("msrun") == 8
    assert size("msrun", "--local_worker_num=3") == 3
    assert size("torchrun") == 1
    assert size("torchrun", "--nproc-per-node", "4", "--nnodes", "1", "--standalone", "--rdzv-id", "7") == 4
    assert size("torchrun", "--nproc_per_node=auto") >= 1


def test_a_pasted_torchrun_line_works(bench: Bench) -> None:
    """With -m, dashes or underscores."""
    bench.write("pkg/__init__.py", "")
    bench.write("pkg/train.py", SHOW)
    line = "--nproc_per_node=2 --nnodes 1 --standalone --max-restarts 3 --rdzv-backend c10d -m pkg.train --lr 0.1"
    done = bench.mslaunch("torchrun", *line.split())
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(bench.log(1))[0] == ["--lr", "0.1"]
    assert bench.plan()["restarts"]["limit"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("msrun", "--worker_num=16", "--local_worker_num=8"), "which node is the launcher? Name it with --master"),
        (("train", "--worker_num=16", "--local_worker_num=8"), "which node is the launcher? Name it with --master"),
        (("train", "--worker_num=15", "--local_worker_num=8", "--master=n0"), "15 ranks (--workers) cannot be spread"),
        (("torchrun", "--nnodes=2"), "which node is the launcher? Name it with --master"),
        (("torchrun", "--nnodes=2", "--node-rank=2", "--master-addr=n0"), "node rank 2 does not exist"),
        (("train", "--nnodes=4:2"), "--nnodes: write a number from 1 on, or two as 2:4"),
        (("train", "--master=n0"), "how many nodes are there? Give --nnodes"),
        (("train", "--nnodes=2", "--master=n0:x"), "--master: cannot read 'n0:x'"),
        (("train", "--nnodes=2", "--hosts=n1,n2", "--master=n0"), "--hosts: nodes that join are not named"),
    ],
)
def test_several_nodes_that_do_not_fit_are_refused(bench: Bench, words: tuple[str, ...], said: str) -> None:
    """Nothing is started, and the exit code is 2."""
    bench.write("train.py", "")
    done = bench.mslaunch(*words, "train.py")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not bench.runs.exists()


@pytest.mark.parametrize(("title", "table"), [("msrun's options", MSRUN), ("torchrun's options", TORCHRUN)])
def test_every_option_is_documented(title: str, table: Table) -> None:
    """docs/coming-from.md names every row of the tables."""
    text = (ROOT / "docs" / "coming-from.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = " ".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)).replace("-", "_").replace("\\*", ".*")
    names = [re.compile(name) for name in re.findall(r"[\w.*]+", cells)]
    missing = [name for name in table if len(name) > 1 and not any(known.fullmatch(name) for known in names)]
    assert missing == []
