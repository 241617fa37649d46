"""Jobs whose nodes join: the same command on every node, real processes in network namespaces of their own."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from mslaunch.hosts import Host
from mslaunch.text import limit_of_wait
from mslaunch.transports.base import Access
from mslaunch.transports.join import JoinTransport
from tests.beds import join_bed, netns_bed
from tests.beds.join_bed import SECRET, Nodes, start_here
from tests.beds.ssh_bed import HELLO, SLEEP, free_port
from tests.conftest import ROOT, Bench, wait_for
from tests.jobs.test_mindspore import ALL_REDUCE

FAILS = HELLO + "import time\nif os.environ['RANK_ID'] == '2': raise ValueError('NaN')\ntime.sleep(100)\n"


@pytest.fixture(scope="module")
def net() -> Iterator[Nodes]:
    with join_bed.nodes(3) as made:
        yield made


@pytest.fixture
def job(bench: Bench, net: Nodes) -> Iterator[Bench]:
    """A folder that all nodes see, with a secret; in the end nothing may run in the namespaces."""
    bench.write("train.py", HELLO)
    bench.write("secret", SECRET + "\n")
    bench.env["MSLAUNCH_SECRET_FILE"] = str(bench.folder / "secret")
    yield bench
    for process in bench.started:
        if process.poll() is None:
            process.kill()
    wait_for(lambda: not net.processes(), "empty namespaces", 30)


def train(net: Nodes, nodes: int | str, rank: int | None, *more: str) -> tuple[str, ...]:
    """The command that every node runs."""
    named = () if rank is None else ("--node-rank", str(rank))
    return ("train", "--nnodes", str(nodes), *named, "--master", net.master, *more)


@pytest.mark.mindspore
@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed (pip install '.[mindspore]')")
def test_three_nodes_reduce_together_whoever_comes_first(job: Bench, net: Nodes) -> None:
    """Six MindSpore ranks on three nodes, the launcher last: right on all, one verdict, the same exit code."""
    job.write("train.py", ALL_REDUCE)
    command = ("--workers-per-node", "2")
    started = [net.start(job, number, *train(net, 3, number, *command)) for number in (2, 1, 0)]
    assert [node.wait(180) for node in started] == [0, 0, 0], "\n".join(node.text for node in started)
    for rank in range(6):
        assert f"rank {rank} of 6 sum 21.0 device {rank % 2}\n" in job.log(rank)
    run = job.latest.name
    assert all(f"run {run} succeeded after" in node.text for node in started)
    assert "joined 10.213.9.1:29400 as node 2 (n2)" in started[0].text
    assert re.search(r"ranks? 4(-5)? started here", started[0].text)
    assert [host["name"] for host in job.plan()["hosts"]] == ["n0", "n1", "n2"]


def test_all_nodes_show_the_same_failure(job: Bench, net: Nodes) -> None:
    """The first failure of all nodes is the verdict on each terminal, and its exit code is that of each command."""
    job.write("train.py", FAILS)
    started = [net.start(job, number, *train(net, 3, number)) for number in range(3)]
    assert [node.wait() for node in started] == [1, 1, 1], "\n".join(node.text for node in started)
    for node in started:
        assert "First to fail: rank 2, host n2, device 0 (exit code 1)" in node.text
        assert "ValueError: NaN" in node.text
    assert "rank 2: ValueError: NaN" in started[2].text.partition("First to fail")[0]
    told = [f"the paths below are those of the launcher at {net.master}" in node.text for node in started]
    assert told == [False, True, True]


def test_code_is_sent_and_logs_are_collected_where_no_folder_is_shared(job: Bench, net: Nodes) -> None:
    """A node that only lends its devices, with an empty folder of its own under the launcher's path."""
    lent = net.start_apart(job, 1, job.folder, "agent", "--join", net.master, MSLAUNCH_SECRET=SECRET, **NO_FILE)
    launcher = net.start(job, 0, *train(net, 2, 0, "--workers-per-node", "1"))
    assert (launcher.wait(), lent.wait()) == (0, 0), launcher.text + lent.text
    assert job.log(1) == "rank 1 on n1 device 0\n"


NO_FILE = {"MSLAUNCH_SECRET_FILE": ""}


def test_a_node_that_stays_joins_the_next_run(job: Bench, net: Nodes) -> None:
    """With --stay it waits for the launcher again, whatever became of the run."""
    lent = net.start(job, 1, "agent", "--join", net.master, "--stay", "--workers-per-node", "2")
    for _ in range(2):
        launcher = net.start(job, 0, *train(net, 2, 0))
        assert launcher.wait() == 0, launcher.text + lent.text
        assert job.record()["world_size"] == 3
    wait_for(lambda: lent.text.count(" succeeded after ") == 2, "the end of the second run")
    lent.process.send_signal(signal.SIGTERM)
    wait_for(lambda: lent.process.poll() is not None, "the end of the agent")


def test_node_ranks_are_given_by_order_of_arrival(job: Bench, net: Nodes) -> None:
    """Whoever can listen at the master's address launches; the others are numbered as they come."""
    first = net.start(job, 2, *train(net, 3, None))
    launcher = net.start(job, 0, *train(net, 3, None))
    wait_for(lambda: "1 joined: n2" in launcher.text, "the first node")
    second = net.start(job, 1, *train(net, 3, None))
    assert [node.wait() for node in (launcher, first, second)] == [0, 0, 0], launcher.text
    assert [host["name"] for host in job.plan()["hosts"]] == ["n0", "n2", "n1"]


def test_as_many_nodes_as_come_in_time_are_enough(job: Bench, net: Nodes) -> None:
    """--nnodes 2:3 starts with two when the time is up."""
    other = net.start(job, 1, *train(net, "2:3", 1))
    launcher = net.start(job, 0, *train(net, "2:3", 0, "--join-timeout", "4"))
    assert (launcher.wait(), other.wait()) == (0, 0), launcher.text + other.text
    assert job.record()["world_size"] == 2
    assert "for 2 other nodes, up to 4 s; " in launcher.text
    assert "going on with 2 nodes of 3 after 4 s (--nnodes, --join-timeout)" in launcher.text


def test_a_second_node_0_on_a_machine_is_asked_about(job: Bench, net: Nodes) -> None:
    """Two nodes were given the same rank: the port is the first one's."""
    first = net.start(job, 0, *train(net, 2, 0))
    wait_for(lambda: "waiting at" in first.text, "the launcher")
    second = net.start(job, 0, *train(net, 2, 0))
    assert second.wait() == 3
    assert "Is another node 0 running here? If not, give another --master on all nodes." in second.text
    first.process.terminate()
    first.wait()


def test_advice_to_an_agent_names_no_flag_that_it_lacks(job: Bench, net: Nodes) -> None:
    """`agent --join` has no --master."""
    node = net.start(job, 1, "agent", "--join", net.master, "--join-timeout", "1")
    assert node.wait() == 3
    assert "Start it, check its address, or wait longer with --join-timeout." in node.text
    assert "--master" not in node.text
    assert f"waiting for the launcher at {net.master}, up to 1 s: " in node.text


def test_too_few_nodes_are_told_to_all(job: Bench, net: Nodes) -> None:
    """Nothing is started, and the node that came learns why, with the same exit code."""
    other = net.start(job, 1, *train(net, 3, 1))
    launcher = net.start(job, 0, *train(net, 3, 0, "--join-timeout", "4"))
    assert (launcher.wait(), other.wait()) == (3, 3), launcher.text + other.text
    for node in (launcher, other):
        assert "2 of 3 nodes are there after 4 s (the launcher, n1)" in node.text
    assert not job.runs.exists() or not (job.runs / "latest").exists()


def test_a_killed_node_is_named_and_nothing_is_left(job: Bench, net: Nodes) -> None:
    """kill -9 of mslaunch on a node: its agent ends its ranks, the launcher names it, the third node is told."""
    job.write("train.py", SLEEP)
    started = [net.start(job, number, *train(net, 3, number)) for number in range(3)]
    wait_for(lambda: job.runs.exists() and "on n2" in job.log(2) and "on n1" in job.log(1), "all ranks")
    started[1].process.kill()
    assert started[0].wait() == 125, started[0].text
    assert started[2].wait() == 125
    for node in (started[0], started[2]):
        assert "the agent on n1 is gone" in node.text
    assert all(rank["ended"] for rank in job.record()["ranks"])
    wait_for(lambda: not net.processes(), "empty namespaces", 15)


def test_a_node_that_is_cut_off_is_named_within_lost_after(job: Bench, net: Nodes) -> None:
    """Its own ranks end too, since it has lost its launcher; its command says so."""
    job.write("train.py", SLEEP)
    job.write("cfg.yaml", "launch: {host_lost_after: 3}\n")
    started = [net.start(job, number, *train(net, 2, number, "--config", "cfg.yaml")) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "rank 1 on" in job.log(1), "all ranks")
    with netns_bed.unplugged(net.names[1]):
        assert started[0].wait() == 125, started[0].text
        assert started[1].wait() == 125, started[1].text
        wait_for(lambda: not net.processes(), "empty namespaces", 15)
    assert "nothing heard from n1 for 3 s" in started[0].text
    assert "the launcher is gone" in started[1].text


def test_a_node_that_is_cut_off_before_the_start_is_named_as_such(job: Bench, net: Nodes) -> None:
    """Nothing is started, and nobody is sent to look for another Python."""
    job.write("cfg.yaml", "launch: {host_lost_after: 4}\n")
    with ExitStack() as cables:
        cables.enter_context(netns_bed.unplugged(net.names[2]))  # so that it comes at once when it can
        started = [net.start(job, number, *train(net, 3, number, "--config", "cfg.yaml")) for number in range(3)]
        wait_for(lambda: "joined 10.213.9.1:29400 as node 1" in started[1].text, "the node")
        wait_for(lambda: "waiting for the launcher" in started[2].text, "the other node")
        with netns_bed.unplugged(net.names[1]):
            cables.close()
            assert started[0].wait() == 3, started[0].text
            assert started[2].wait() == 3
            assert started[1].wait() == 125, started[1].text
    assert "n1: it joined, and the connection to it was lost before the job began." in started[0].text


def test_a_killed_launcher_leaves_nothing_anywhere(job: Bench, net: Nodes) -> None:
    """kill -9 of the launcher: the nodes notice, end their ranks and say so."""
    job.write("train.py", SLEEP)
    started = [net.start(job, number, *train(net, 2, number)) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "rank 1 on" in job.log(1), "all ranks")
    started[0].process.kill()
    assert started[1].wait() == 125, started[1].text
    assert "the launcher is gone" in started[1].text
    wait_for(lambda: not net.processes(), "empty namespaces", 15)


def test_stopping_leaves_nothing_anywhere(job: Bench, net: Nodes) -> None:
    """SIGTERM of the launcher stops all ranks; every node ends with its exit code."""
    job.write("train.py", SLEEP)
    started = [net.start(job, number, *train(net, 2, number)) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "rank 1 on" in job.log(1), "all ranks")
    started[0].process.send_signal(signal.SIGTERM)
    assert [node.wait() for node in started] == [143, 143], started[1].text
    assert not net.processes()


def test_a_node_that_is_told_to_end_says_so(job: Bench, net: Nodes) -> None:
    """SIGTERM of a node, as of a pod that is evicted: its ranks get their time, and the launcher names it."""
    job.write("train.py", SLEEP)
    started = [net.start(job, number, *train(net, 2, number)) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "rank 1 on" in job.log(1), "all ranks")
    started[1].process.send_signal(signal.SIGTERM)
    assert [node.wait() for node in started] == [125, 143], started[0].text + started[1].text
    assert "the agent on n1 gave up: the agent was told to end" in started[0].text


def test_other_machines_need_a_secret(job: Bench, net: Nodes) -> None:
    """Without one neither side begins, and both say how to give one."""
    for rank in (0, 1):
        node = net.start(job, rank, *train(net, 2, rank), **NO_FILE)
        assert node.wait() == 2
        assert "join only with a secret, and there is none. Make one with `openssl rand -hex 32`" in node.text


def test_the_secret_may_lie_in_the_shared_folder_of_runs(job: Bench, net: Nodes) -> None:
    """mslaunch-runs/join.secret, where nobody else can read it; otherwise it is refused."""
    path = job.write("mslaunch-runs/join.secret", SECRET)
    path.chmod(0o644)
    refused = net.start(job, 0, *train(net, 2, 0), **NO_FILE)
    assert refused.wait() == 3
    assert "others can read or write this secret" in refused.text
    path.chmod(0o600)
    started = [net.start(job, number, *train(net, 2, number), **NO_FILE) for number in range(2)]
    assert [node.wait() for node in started] == [0, 0], started[1].text


@pytest.fixture
def here(bench: Bench) -> Bench:
    """A folder for jobs whose nodes are all on this machine: they need no secret."""
    bench.write("train.py", HELLO)
    return bench


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "localhost"])
def test_the_loopback_needs_no_secret(here: Bench, address: str) -> None:
    """IPv4 and IPv6; the nodes of one machine have names of their own."""
    master = f"{address}:{free_port()}"
    started = [
        start_here(here, "train", "--nnodes", "2", "--node-rank", str(rank), "--master", master) for rank in (1, 0)
    ]
    assert [node.wait() for node in started] == [0, 0], started[0].text + started[1].text
    names = [host["name"] for host in here.plan()["hosts"]]
    assert names == [os.uname().nodename, f"{os.uname().nodename}-1"]


def test_a_name_that_does_not_resolve_yet_is_waited_for(here: Bench) -> None:
    """A pod's name may come later than the pod; when the time is up, the sentence says what was missing."""
    node = start_here(here, "agent", "--join", "nowhere.invalid", "--join-timeout", "1")
    assert node.wait() == 3
    assert "nowhere.invalid:29400: the name does not resolve, after 1 s" in node.text


def test_a_node_joins_once_its_launchers_name_resolves(job: Bench, net: Nodes) -> None:
    """Of a node whose file of names gets the launcher's while it waits."""
    names = job.write("hosts", "127.0.0.1 localhost\n")
    command = ("agent", "--join", f"launcher.pods:{join_bed.PORT}")
    node = net.start_with_names(job, 1, names, *command)
    wait_for(lambda: "its name does not resolve" in node.text, "the node")
    names.open("a").write("10.213.9.1 launcher.pods\n")
    launcher = net.start(job, 0, *train(net, 2, 0))
    assert (launcher.wait(), node.wait()) == (0, 0), launcher.text + node.text


def test_without_a_master_the_command_says_what_to_write(here: Bench) -> None:
    """One sentence, nothing started."""
    done = here.mslaunch("train", "--nnodes", "2")
    assert done.returncode == 2
    assert re.search(r"which node is the launcher\? .* --nnodes 4 --node-rank 0 --master n0:29400", done.stderr)


SAVES = (
    HELLO
    + """
import pathlib, shutil, time
attempt, folder = os.environ["MSLAUNCH_ATTEMPT"], pathlib.Path("ckpt")
print("resume", pathlib.Path(os.environ.get("MSLAUNCH_RESUME", "nothing")).name, flush=True)
if attempt == "0":
    folder.mkdir(exist_ok=True)
    shutil.copy(os.environ["CHECKPOINT"], folder / "net-1_5.ckpt")
    print("saved", flush=True)
    time.sleep(100)
"""
)
RESTARTS = "launch: {max_restarts: 2, backoff: 0, host_lost_after: 3, checkpoints: ckpt}\n"
CHECKPOINT = next((ROOT / "tests/fixtures/checkpoints").rglob("*.ckpt"))


@pytest.mark.parametrize("comes", ["back", "new"])
def test_a_node_may_come_in_place_of_a_lost_one(job: Bench, net: Nodes, comes: str) -> None:
    """The next attempt waits for it: the same node again, or another one; it resumes from the newest checkpoint."""
    _write_saving_job(job)
    command = ("--config", "cfg.yaml", "--workers-per-node", "1")
    started = [net.start(job, number, *train(net, 2, number, *command)) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "saved" in job.log(0) and "saved" in job.log(1), "the checkpoints")
    started[1].process.kill()
    wait_for(lambda: "waiting for a host in place of n1" in started[0].text, "the launcher")
    other = net.start(job, 1 if comes == "back" else 2, *train(net, 2, 1, *command))
    assert (started[0].wait(), other.wait()) == (0, 0), started[0].text + other.text
    assert [host["name"] for host in job.plan()["hosts"]] == ["n0", "n1" if comes == "back" else "n2"]
    assert job.log(1).splitlines()[-1] == "resume net-1_5.ckpt"
    assert job.record()["attempts"][0]["verdict"]["cause"] == "host lost"


def test_a_launcher_that_is_started_again_takes_up_its_run(job: Bench, net: Nodes) -> None:
    """With the same --run-id: a further attempt from the newest checkpoint, and nodes that stay join it again."""
    _write_saving_job(job)
    lent = net.start(job, 1, "agent", "--join", net.master, "--stay")
    command = train(net, 2, 0, "--config", "cfg.yaml", "--run-id", "night")
    first = net.start(job, 0, *command)
    wait_for(lambda: job.runs.exists() and "saved" in job.log(0) and "saved" in job.log(1), "the checkpoints")
    first.process.kill()
    first.wait()
    again = net.start(job, 0, *command)
    assert again.wait() == 0, again.text + lent.text
    assert "the launcher was lost and is started again: attempt 2, resuming from net-1_5.ckpt" in again.text
    assert [job.log(rank).splitlines()[-1] for rank in (0, 1)] == ["resume net-1_5.ckpt"] * 2
    assert len(job.record("night")["attempts"]) == 1
    lent.process.send_signal(signal.SIGTERM)
    assert lent.wait() in (143, -signal.SIGTERM)


def _write_saving_job(job: Bench) -> None:
    job.write("train.py", SAVES)
    job.write("cfg.yaml", RESTARTS)
    job.env["CHECKPOINT"] = str(CHECKPOINT)


WAITS_AT_FIRST = HELLO + "import time\nif os.environ['MSLAUNCH_ATTEMPT'] == '0': time.sleep(100)\n"


def _lose_node(job: Bench, net: Nodes, nodes: str, *more: str) -> join_bed.Node:
    """Start a job on two nodes that may be started again, and kill the second; return the launcher."""
    job.write("train.py", WAITS_AT_FIRST)
    job.write("cfg.yaml", RESTARTS)
    command = ("--config", "cfg.yaml", *more)
    started = [net.start(job, number, *train(net, nodes, number, *command)) for number in range(2)]
    wait_for(lambda: job.runs.exists() and "rank 0" in job.log(0) and "rank 1" in job.log(1), "all ranks")
    started[1].process.kill()
    wait_for(lambda: "waiting for a host in place of n1" in started[0].text, "the launcher")
    return started[0]


def test_a_new_node_without_our_folder_gets_the_code(job: Bench, net: Nodes) -> None:
    """All of it, though other hosts are sent only what has changed since the first attempt."""
    launcher = _lose_node(job, net, "2")
    lent = ("agent", "--join", net.master)
    other = net.start_apart(job, 2, job.folder, *lent, MSLAUNCH_SECRET=SECRET, **NO_FILE)
    assert (launcher.wait(), other.wait()) == (0, 0), launcher.text + other.text
    assert job.log(1) == "rank 1 on n2 device 0\n"


def test_a_job_ends_where_no_node_comes_in_time(job: Bench, net: Nodes) -> None:
    """With the verdict of the attempt that lost the node, and why there is no further one."""
    launcher = _lose_node(job, net, "2", "--join-timeout", "3")
    assert launcher.wait() == 125
    assert "not started again: no other node has come in place of n1" in launcher.text


def test_a_job_goes_on_with_fewer_nodes_where_that_is_allowed(job: Bench, net: Nodes) -> None:
    """--nnodes 1:2, and no other node comes."""
    launcher = _lose_node(job, net, "1:2", "--join-timeout", "3")
    assert launcher.wait() == 0, launcher.text
    assert job.record()["world_size"] == 1
    assert "with 1 rank, without n1" in launcher.text


def test_waiting_for_a_node_can_be_ended(job: Bench, net: Nodes) -> None:
    """SIGTERM of the launcher; nothing is left."""
    launcher = _lose_node(job, net, "2")
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.wait() == 143, launcher.text
    assert not net.processes()


def test_a_node_that_only_joins_is_not_detached(here: Bench) -> None:
    """One sentence: there is no run of its own to go on."""
    done = here.mslaunch("train", "--detach", "--nnodes", "2", "--node-rank", "1", "--master", "127.0.0.1:9")
    assert done.returncode == 2
    assert "--detach: another node launches this job" in done.stderr + done.stdout


def test_a_launcher_asks_for_as_many_open_files_as_its_nodes_need(here: Bench) -> None:
    """Room for strangers that knock is taken as far as the limit goes; two nodes fit below a limit of 200."""
    here.program = str(here.write("limited", f'#!/bin/bash\nulimit -n 200 && exec {here.program} "$@"\n'))
    (here.folder / "limited").chmod(0o755)
    options = ("--nnodes", "2", "--launcher-only", "--master", f"127.0.0.1:{free_port()}", "--join-timeout", "0.1")
    done = here.mslaunch("train", *options)
    assert "0 of 2 nodes are there after 0.1 s" in done.stderr


def test_nodes_that_have_joined_cannot_be_reached_again() -> None:
    """`mslaunch collect` says so of each, instead of trying."""
    opened = JoinTransport().open((Host("n1", "10.0.0.2", (0,)),), Access("python3"))
    assert opened.problems == ("n1: it has joined by itself, and cannot be reached again. Look there.",)


def test_a_wait_of_a_week_is_told_in_hours() -> None:
    """As in pods; what was typed in seconds stays so."""
    assert [limit_of_wait(seconds) for seconds in (5.0, 600.0, 604800.0, -0.2)] == ["5 s", "600 s", "168 h", "0 s"]
