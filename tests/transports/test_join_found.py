"""What systems tell a node that they start, and what a node makes of it: tables, the dry run, and pasted lines."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from mslaunch.errors import MslaunchError, RequestError
from mslaunch.launcher.read import Request, read
from mslaunch.transports.cluster_environment import ClusterEnvironment, detect
from mslaunch.transports.join.listener import Places, read_hello
from mslaunch.transports.join.role import split_master
from tests.beds.join_bed import start_here
from tests.beds.ssh_bed import HELLO, free_port
from tests.conftest import ROOT, Bench
from tests.transports.test_join_attacks import HELLO_RECORD

VERSION = str(HELLO_RECORD["version"])

VOLCANO = {
    "VC_TASK_INDEX": "1",
    "VK_TASK_INDEX": "1",
    "VC_WORKER_HOSTS": "j-worker-0.j,j-worker-1.j",
    "VC_WORKER_NUM": "2",
}
OPERATOR = {
    "MS_SCHED_HOST": "10.0.0.1",
    "MS_SCHED_PORT": "2222",
    "MS_NODE_RANK": "0",
    "MS_WORKER_NUM": "16",
    "MS_LOCAL_WORKER": "8",
}
PET = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            VOLCANO,
            "found Volcano: nodes 2 (VC_WORKER_NUM), node rank 1 (VC_TASK_INDEX), "
            "master j-worker-0.j (VC_WORKER_HOSTS)",
        ),
        (
            {**VOLCANO, "MA_NUM_HOSTS": "2", "MA_NUM_GPUS": "8"},
            "found ModelArts: nodes 2 (MA_NUM_HOSTS), node rank 1 (VC_TASK_INDEX), "
            "master j-worker-0.j (VC_WORKER_HOSTS), workers per node 8 (MA_NUM_GPUS)",
        ),
        (
            {**VOLCANO, "RANK_TABLE_FILE": "/user/hccl.json"},
            "found Volcano: nodes 2 (VC_WORKER_NUM), node rank 1 (VC_TASK_INDEX), "
            "master j-worker-0.j (VC_WORKER_HOSTS), rank table /user/hccl.json (RANK_TABLE_FILE)",
        ),
        (
            OPERATOR,
            "found the Ascend operator: nodes 2 (MS_WORKER_NUM / MS_LOCAL_WORKER), node rank 0 (MS_NODE_RANK), "
            "master 10.0.0.1 (MS_SCHED_HOST), port 2222 (MS_SCHED_PORT), workers per node 8 (MS_LOCAL_WORKER)",
        ),
        (
            {**OPERATOR, "MS_ROLE": "MS_WORKER"},
            "found the Ascend operator: nodes 2 (MS_WORKER_NUM / MS_LOCAL_WORKER), master 10.0.0.1 (MS_SCHED_HOST), "
            "port 2222 (MS_SCHED_PORT), workers per node 8 (MS_LOCAL_WORKER), launcher another node (MS_ROLE)",
        ),
        (
            PET,
            "found torchrun's variables: nodes 2 (PET_NNODES), node rank 1 (PET_NODE_RANK), "
            "master m (PET_MASTER_ADDR), port 29500 (PET_MASTER_PORT)",
        ),
        (
            {"NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "m", "NPROC_PER_NODE": "8"},
            "found variables of a torchrun script: nodes 2 (NNODES), node rank 1 (NODE_RANK), master m (MASTER_ADDR), "
            "workers per node 8 (NPROC_PER_NODE)",
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, "found a Kubernetes Indexed Job: node rank 3 (JOB_COMPLETION_INDEX)"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "found MPI: nodes 2 (OMPI_COMM_WORLD_SIZE), node rank 1 (OMPI_COMM_WORLD_RANK)",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_each_system_tells_what_it_tells(environment: dict[str, str], words: str) -> None:
    """Every value with the variable that it came from."""
    found = detect(environment)
    assert found is not None
    assert found.words() == words


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_node_files_of_batch_systems(tmp_path: Path, variable: str) -> None:
    """Each node once, however many slots it has; this one is found by its name."""
    path = tmp_path / "nodes"
    path.write_text(f"first.site\nfirst.site\n{socket.gethostname()}.site\n")
    found = detect({variable: str(path)})
    assert found is not None
    assert (found.nodes, found.rank, found.master) == (2, 1, "first.site")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"VC_TASK_INDEX": "0"},
        {**VOLCANO, "VC_PS_HOSTS": "j-ps-0.j"},
        {**VOLCANO, "MSLAUNCH_RUN_DIR": "/x"},
        {"VC_TASK_INDEX": "one", "VC_WORKER_HOSTS": "a,b"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        {"MS_SCHED_HOST": "127.0.0.1", "MS_WORKER_NUM": "2"},
        {"PBS_NODEFILE": "/nowhere"},
        {"PBS_NODEFILE": "/dev/zero"},
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m"},
    ],
)
def test_what_tells_too_little_is_not_taken_for_a_node(environment: dict[str, str]) -> None:
    """Several tasks, a rank of a job, leftovers of another launcher."""
    assert detect(environment) is None


def test_no_variable_breaks_the_table() -> None:
    """What stands in a variable may be anything."""
    for value in ("", "x" * 10_000, "-1", "9" * 30, "\udcff", "٣"):
        for base in (VOLCANO, OPERATOR, PET):
            assert isinstance(detect(dict.fromkeys(base, value)), (ClusterEnvironment, type(None)))


def test_the_dry_run_says_what_was_found_and_where(bench: Bench) -> None:
    """A pod of Volcano without any flag; nothing is contacted."""
    bench.write("train.py", HELLO)
    done = bench.mslaunch("train", "--dry-run", **VOLCANO)
    assert done.returncode == 0, done.stderr
    assert "note     found Volcano: nodes 2 (VC_WORKER_NUM), node rank 1 (VC_TASK_INDEX)" in done.stdout
    assert "job      2 ranks" in done.stdout


def test_one_node_of_a_system_is_an_ordinary_job(bench: Bench) -> None:
    """A job of one pod waits for nobody."""
    bench.write("train.py", HELLO)
    env = {**VOLCANO, "VC_TASK_INDEX": "0", "VC_WORKER_HOSTS": "j-worker-0.j", "VC_WORKER_NUM": "1"}
    assert bench.mslaunch("train", **env).returncode == 0
    assert bench.record()["transport"] != "join"


def test_flags_outweigh_what_was_found(bench: Bench) -> None:
    """--nnodes 1 means one machine, whatever the system says."""
    bench.write("train.py", HELLO)
    done = bench.mslaunch("train", "--dry-run", "--json", "--nnodes", "1", **VOLCANO)
    assert json.loads(done.stdout)["transport"] != "join", done.stderr


def test_pods_of_a_system_need_no_flag(bench: Bench) -> None:
    """The same command in two pods of the Ascend operator and a scheduler without devices."""
    bench.write("train.py", HELLO)
    common = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(free_port())}
    common |= {"MS_WORKER_NUM": "4", "MS_LOCAL_WORKER": "2", "MS_NODE_RANK": "0"}
    roles = ("MS_WORKER", "MS_SCHED", "MS_WORKER")
    started = [start_here(bench, "train", **common, MS_ROLE=role) for role in roles]
    assert [node.wait() for node in started] == [0, 0, 0], "\n".join(node.text for node in started)
    assert bench.record()["world_size"] == 4
    assert len(bench.plan()["hosts"]) == 2


@pytest.mark.parametrize(
    "lines",
    [
        "msrun --worker_num=4 --local_worker_num=2 --master_addr={host} --master_port={port} "
        "--node_rank={rank} train.py",
        "torchrun --nnodes=2 --nproc-per-node=2 --node-rank={rank} --rdzv-endpoint={master} train.py",
        "torchrun --nnodes=2:2 --nproc-per-node=2 --rdzv-endpoint={master} train.py",
    ],
)
def test_a_pasted_line_works_on_every_node(bench: Bench, lines: str) -> None:
    """As msrun and torchrun are started: the same line on each node, but for the rank; they meet at its port."""
    bench.write("train.py", HELLO)
    port = free_port()
    meeting = {"host": "127.0.0.1", "port": port, "master": f"127.0.0.1:{port}"}
    words = [lines.format(rank=rank, **meeting).split() for rank in (0, 1)]
    started = [start_here(bench, *line) for line in words]
    assert [node.wait() for node in started] == [0, 0], started[0].text + started[1].text
    assert [bench.log(rank).split()[-1] for rank in range(4)] == ["0", "1", "0", "1"]
    assert f"joined 127.0.0.1:{port} as node 1" in started[0].text + started[1].text
    assert bench.plan()["master"] != f"127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("n0:29400", ("n0", 29400)),
        ("n0", ("n0", None)),
        ("[fe80::1]:1", ("fe80::1", 1)),
        ("[fe80::1]", ("fe80::1", None)),
        ("fe80::1", ("fe80::1", None)),
        (":29400", ("", 29400)),
    ],
)
def test_masters_are_read(text: str, meant: tuple[str, int | None]) -> None:
    """With and without a port, IPv6 in brackets or without."""
    assert split_master(text, "--master") == meant


@pytest.mark.parametrize("text", ["n0:0", "n0:70000", "n0:x", "a b:1", "[fe80::1:1", "n0:٣"])
def test_masters_that_cannot_be_read_are_refused(text: str) -> None:
    """One sentence, with an example."""
    with pytest.raises(RequestError, match=r"Write for example n0:29400"):
        split_master(text, "--master")


def test_a_node_that_comes_back_has_the_rank_that_it_had() -> None:
    """Ranks by order of arrival are stable: a new node gets the place that nobody has had, or the one that is free."""
    places = Places(3, VERSION, may_come_back=True)
    hello = {host: read_hello({**HELLO_RECORD, "rank": None, "host": host}) for host in "abc"}
    assert [places.admit(hello[host]).rank for host in "ab"] == [0, 1]
    places.leave("a")
    places.leave("b")
    assert (places.admit(hello["b"]).rank, places.admit(hello["c"]).rank) == (1, 2)
    assert places.admit(hello["a"]).rank == 0
    assert places.admit(hello["a"]).refusal == "all 3 nodes are there."


def test_a_launcher_that_comes_back_gives_the_ranks_of_before() -> None:
    """Whoever comes first: names and ranks are those of the earlier attempt."""
    places = Places(2, VERSION, may_come_back=False)
    places.remember(["a", "b"])
    assert places.admit(read_hello({**HELLO_RECORD, "rank": None, "host": "b"})).rank == 1
    assert places.admit(read_hello({**HELLO_RECORD, "rank": None, "host": "a"})).rank == 0


def test_a_new_node_takes_the_place_of_one_that_has_gone() -> None:
    """With a name of its own."""
    places = Places(1, VERSION, may_come_back=True)
    places.admit(read_hello({**HELLO_RECORD, "rank": 0, "host": "old"}))
    places.leave("old")
    assert places.admit(read_hello({**HELLO_RECORD, "rank": None, "host": "new"})).name == "new"


def test_another_version_is_refused() -> None:
    """Agent and launcher speak the same version's messages."""
    refused = Places(1, "1.0", False).admit(read_hello({**HELLO_RECORD, "version": "0.9", "rank": 0}))
    assert refused.refusal == "it has mslaunch 0.9, and the launcher 1.0. Install the same."


def test_ranks_do_not_see_what_the_system_set_for_another_launcher(bench: Bench) -> None:
    """MS_SCHED_HOST of a pod is not that of the job."""
    bench.write("train.py", HELLO + "print(os.environ.get('RANK_TABLE_FILE'), os.environ.get('VC_TASK_INDEX'))\n")
    master = f"127.0.0.1:{free_port()}"
    env = {"RANK_TABLE_FILE": "/x", "VC_TASK_INDEX": "7"}
    words = ("train", "--nnodes", "2", "--master", master, "--node-rank")
    started = [start_here(bench, *words, "0"), start_here(bench, *words, "1", **env)]
    assert [node.wait() for node in started] == [0, 0], started[1].text
    assert bench.log(1).splitlines()[-1] == "None 7"
    assert os.environ.get("VC_TASK_INDEX") is None


TABLE = ROOT / "rank_tables" / "v1.0_2x8.json"


@pytest.mark.parametrize(("method", "table"), [("rank-table", TABLE.read_text()), ("dynamic", None)])
def test_the_table_of_a_system_is_for_the_method_that_needs_one(
    method: str, table: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ModelArts, say; MindSpore's own rank assignment needs none."""
    for name, value in {**VOLCANO, "MA_NUM_HOSTS": "2", "RANK_TABLE_FILE": str(TABLE)}.items():
        monkeypatch.setenv(name, value)
    assert read(Request(flags={"method": method})).rank_table == table


def test_a_table_of_a_system_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**VOLCANO, "RANK_TABLE_FILE": "/no/table.json"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MslaunchError, match=r"/no/table\.json.*RANK_TABLE_FILE"):
        read(Request(flags={"method": "rank-table"}))
