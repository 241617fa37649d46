"""Jobs on real Kubernetes nodes: what a stand-in for the kubelet cannot show.

All tests use one cluster. What takes long by waiting, the loss of a node and a job that prints much, begins first and
goes on while the other tests run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.beds.join_bed import Node, start_here
from tests.beds.nodes_bed import IMAGE, RealNodes, real_nodes
from tests.conftest import Bench, wait_for
from tests.transports.test_kubernetes import SLEEP

KUBE = ("--transport", "kubernetes", "--image", IMAGE, "-N", "2", "--workers", "2")
ALL_REDUCE = """
import os

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
print("sum", ops.AllReduce()(Tensor([get_rank() + 1.0], ms.float32)).asnumpy()[0], "user", os.getuid(), flush=True)
"""
LINES = 40_000
LOUD = f"""
import os
import time

for number in range({LINES}):
    print(f"line {{number:06d}} {{os.urandom(24).hex()}}")
    if number % 4000 == 0:
        time.sleep(0.5)
print("the last line", flush=True)
"""
GREEDY = """
import time

print("up", flush=True)
kept = []
while True:
    kept.append(bytearray(8 << 20))
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealNodes]:
    with real_nodes("node-a", "node-b", "node-c") as made:
        yield made


@pytest.fixture
def far(bench: Bench, cluster: RealNodes) -> Bench:
    cluster.prepare(bench)
    return bench


@dataclass(frozen=True)
class Losses:
    """Jobs whose node is lost, by the name of their run."""

    bench: Bench
    jobs: Mapping[str, Node]


@pytest.fixture(scope="module")
def losses(cluster: RealNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Losses]:
    """A node with a worker of one job, and with the launcher and a worker of another one, that is switched off."""
    bench = make_bench(cluster, tmp_path_factory.mktemp("losses"), SLEEP)
    jobs = {}
    for run, launcher in {"lost-worker": "node-a", "lost-launcher": "node-c"}.items():
        patch = spread(run, launcher, "node-b", "node-c")
        jobs[run] = start_here(bench, "train", *KUBE, "--run-id", run, "--set", settings(patch=patch))
    try:
        for run, job in jobs.items():
            wait_for(partial(_shows, job, "sleeping"), f"{run} to print")
        cluster.kubectl("cordon", "node-c")  # pods of other jobs have no place there
        cluster.lose("node-c")
        yield Losses(bench, jobs)
    finally:
        for job in jobs.values():
            job.process.terminate()
            job.wait()


@pytest.fixture(scope="module")
def loud(losses: Losses, cluster: RealNodes, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A detached job that prints more than a node keeps for readers."""
    del losses  # begins first
    bench = make_bench(cluster, tmp_path_factory.mktemp("loud"), LOUD)
    done = bench.mslaunch("train", *KUBE, "--run-id", "loud", "--detach", "--set", settings())
    assert done.returncode == 0, done.stderr
    return bench


def make_bench(cluster: RealNodes, folder: Path, program: str) -> Bench:
    """Make a folder for jobs that go on while tests do; the end of the cluster proves that nothing of them is left."""
    bench = Bench(folder / "job", dict(os.environ))
    bench.write("train.py", program)
    cluster.prepare(bench)
    return bench


def settings(**more: object) -> str:
    return f"launch.kubernetes={json.dumps({'python': sys.executable, **more})}"


def template(**spec: object) -> dict[str, object]:
    return {"spec": {"template": {"spec": spec}}}


def spread(run: str, launcher: str, *workers: str) -> dict[str, object]:
    """The launcher on one node, and each worker on another one of its nodes."""
    labels = {"matchLabels": {"mslaunch-run": run, "mslaunch-part": "worker"}}
    rule = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    names = {"key": "kubernetes.io/hostname", "operator": "In", "values": workers}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    worker = template(affinity=affinity, topologySpreadConstraints=[{**rule, "labelSelector": labels}])
    return {"launcher": template(nodeSelector={"kubernetes.io/hostname": launcher}), "worker": worker}


@pytest.mark.mindspore
@pytest.mark.skipif(find_spec("mindspore") is None, reason="MindSpore is not installed (pip install '.[mindspore]')")
@pytest.mark.usefixtures("loud")
def test_mindspore_reduces_over_two_nodes(far: Bench) -> None:
    """The ranks run in pods of two nodes, not as root; output, record and logs are on the submitter's machine."""
    far.write("train.py", ALL_REDUCE)
    patch = spread("reduces", "node-a", "node-a", "node-b")
    done = far.mslaunch("train", *KUBE, "--run-id", "reduces", "--set", settings(patch=patch))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [far.log(rank).count("sum 3.0 user 1000") for rank in range(2)] == [1, 1]
    assert far.record()["state"] == "succeeded"


@pytest.mark.usefixtures("loud")
def test_a_worker_that_waits_ends_at_once(far: Bench, cluster: RealNodes) -> None:
    """It is PID 1 of its container, and its grace period is two minutes; Ctrl-C then waits for no object either."""
    far.write("train.py", SLEEP)
    patch = {"launcher": template(containers=[{"name": "launcher", "image": "127.0.0.1:9/missing:1"}])}
    options = ("--set", "launch.grace=100", "--run-id", "waits", "--set", settings(patch=patch))
    job = start_here(far, "train", *KUBE, *options)
    wait_for(lambda: "its image cannot be pulled" in job.text, "the reason")
    worker = wait_for(lambda: _running(cluster, "waits"), "a worker that runs")[0]
    wait_for(lambda: "waiting for" in cluster.kubectl("logs", worker), "a worker that waits")
    cluster.kubectl("delete", "pod", worker, "--wait=false")
    wait_for(lambda: worker not in _running(cluster, "waits"), "the end of the worker", 60)
    job.process.send_signal(signal.SIGINT)
    assert job.wait(60) == 130, job.text


def _running(cluster: RealNodes, run: str) -> list[str]:
    pods = cluster.pods(run, "worker")
    states = {pod["metadata"]["name"]: pod["status"].get("containerStatuses") or [{}] for pod in pods}
    return [name for name, (first, *_) in states.items() if "running" in first.get("state", {})]


def _shows(job: Node, words: str) -> bool:
    return words in job.text


@pytest.mark.usefixtures("loud")
def test_a_pod_out_of_memory_is_the_one_that_the_verdict_names(far: Bench) -> None:
    """Both pods reach their limit within a second; the kernel kills a rank, and the node reports its container."""
    far.write("train.py", GREEDY)
    done = far.mslaunch("train", *KUBE, "--run-id", "greedy", "--set", settings(resources={"memory": "96Mi"}))
    verdict = far.record()["verdict"]
    assert done.returncode == 137, done.stdout + done.stderr
    assert "used more memory than its limit (OOMKilled)" in verdict["summary"]
    host = next(rank["host"] for rank in far.record()["ranks"] if rank["rank"] == verdict["rank"])
    assert f"pod {host} on node-" in verdict["summary"]


def test_a_log_that_the_node_has_rotated_has_its_end_and_names_what_is_missing(loud: Bench, cluster: RealNodes) -> None:
    """Nobody has looked at the job before its end; its objects are deleted once it was read."""
    wait_for(lambda: [pod["status"]["phase"] for pod in cluster.pods("loud", "launcher")] == ["Succeeded"], "the end")
    shown = loud.mslaunch("status", "loud").stdout
    assert "loud: succeeded, exit code 0" in shown
    record = loud.record("loud")
    assert "bytes of rank_0/log.txt" in record["notes"][-1]
    assert f"note: {record['notes'][-1]}" in shown
    for rank in (0, 1):
        log = (loud.runs / "loud" / f"rank_{rank}" / "log.txt").read_text()
        first, *rest = log.splitlines()
        assert "bytes of this file are missing" in first
        assert rest[-2].startswith(f"line {LINES - 1:06d} ")
        assert rest[-1] == "the last line"
    assert "\0" not in Path(loud.runs / "loud" / "launcher.log").read_text()
    wait_for(lambda: not cluster.pods("loud", "launcher"), "the objects to be deleted")


def test_the_loss_of_a_node_is_the_verdict(losses: Losses) -> None:
    """A job of which the node had a worker, and one of which it had the launcher too: both end, with all ranks."""
    assert [job.wait() for job in losses.jobs.values()] == [125, 125]
    for run, job in losses.jobs.items():
        record = losses.bench.record(run)
        assert "on node-c was ended: its node was lost (NodeLost)" in record["verdict"]["summary"], job.text
        assert record["verdict"]["summary"] in job.text
        assert all(rank["ended"] for rank in record["ranks"])
