"""Jobs on a real Kubernetes control plane; a stand-in for the kubelet runs the pods on this machine."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.conftest import ROOT, Bench, wait_for
from tests.kubernetes_bed import NO_IMAGE, ControlPlane, control_plane

KUBE = ("--transport", "kubernetes", "--image", "job:1", "-N", "2", "--workers", "2")
HELLO = "import os\nprint('rank', os.environ['RANK_ID'], 'user', os.getuid(), flush=True)\n"
SLEEP = "import time\nprint('sleeping', flush=True)\ntime.sleep(600)\n"
FAIL = (
    "import os\nif os.environ['RANK_ID'] == '1':\n    raise ValueError('no such luck')\nimport time\ntime.sleep(600)\n"
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as plane:
        yield plane


@pytest.fixture
def site(bench: Bench, plane: ControlPlane) -> Iterator[Bench]:
    """A folder to submit from; nothing of any job may be left after the test."""
    bench.env["KUBECONFIG"] = str(plane.kubeconfig)
    yield bench
    try:
        wait_for(lambda: not plane.left(), f"all objects to be deleted; at first {plane.left()}", 60)
        wait_for(lambda: not plane.kubelet.running(), "all pods to end", 30)
    finally:
        plane.batch.delete_collection_namespaced_job("default", propagation_policy="Background")


def test_a_job_is_submitted_and_followed(site: Bench) -> None:
    """Its ranks run in two pods, not as root; output, record and logs are on the submitter's machine."""
    site.write("train.py", HELLO)
    done = site.mslaunch("train", *KUBE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 user 1000" in done.stdout
    assert site.record()["state"] == "succeeded"
    assert site.record()["transport"] == "kubernetes"
    assert "rank 1 user 1000" in site.log(1)
    assert len({rank["host"] for rank in site.record()["ranks"]}) == 2


def test_a_rank_that_fails_is_the_verdict(site: Bench) -> None:
    """The first failure is named, with its log here, and the exit code is the job's."""
    site.write("train.py", FAIL)
    done = site.mslaunch("train", *KUBE)
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stdout
    assert site.record()["verdict"]["rank"] == 1
    assert "no such luck" in site.log(1)


def test_ctrl_c_cancels_the_job(site: Bench, plane: ControlPlane) -> None:
    site.write("train.py", SLEEP)
    watching = site.start("train", *KUBE)
    wait_for(lambda: "sleeping" in site.log(0), "rank 0 to print")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(120) == 130
    assert site.record()["state"] == "stopped"
    assert plane.left() == []


def test_a_submitter_that_is_killed_leaves_nothing(site: Bench, plane: ControlPlane) -> None:
    """A process of its own deletes the job."""
    site.write("train.py", SLEEP)
    watching = site.start("train", *KUBE)
    wait_for(lambda: "sleeping" in site.log(0), "rank 0 to print")
    watching.kill()
    watching.wait()
    wait_for(lambda: not plane.left(), "all objects to be deleted")


def test_a_pod_out_of_memory_is_the_cause(site: Bench, plane: ControlPlane) -> None:
    """What only Kubernetes knows replaces `host lost` in the verdict."""
    site.write("train.py", SLEEP)
    watching = site.start("train", *KUBE)
    wait_for(lambda: "sleeping" in site.log(0), "rank 0 to print")
    pod = plane.pods("worker")[0]
    plane.kubelet.end(pod, "OOMKilled")
    output, _ = watching.communicate(timeout=120)
    assert watching.returncode not in (0, None)
    verdict = site.record()["verdict"]
    assert verdict["cause"] == "kubernetes"
    assert f"pod {pod} on node-" in verdict["summary"]
    assert "used more memory than its limit (OOMKilled)" in output


def test_an_evicted_pod_is_the_cause(site: Bench, plane: ControlPlane) -> None:
    site.write("train.py", SLEEP)
    watching = site.start("train", *KUBE)
    wait_for(lambda: "sleeping" in site.log(0), "rank 0 to print")
    plane.kubelet.end(plane.pods("worker")[0], "Evicted")
    output, _ = watching.communicate(timeout=120)
    assert "its node evicted it (Evicted)" in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", 'launch.kubernetes={resources: {"huawei.com/Ascend910": 9}}'], "too little huawei.com/Ascend910"),
        (["--set", "launch.kubernetes={node_selector: {zone: moon}}"], "no node fits"),
        (["--image", NO_IMAGE], "its image cannot be pulled (ImagePullBackOff"),
    ],
    ids=["unschedulable", "selector", "image"],
)
def test_it_is_told_why_pods_wait(site: Bench, options: list[str], words: str) -> None:
    """Ctrl-C cancels such a job as well."""
    site.write("train.py", HELLO)
    out = site.folder.parent / "out.txt"
    with out.open("w") as file:
        watching = subprocess.Popen(
            [site.program, "train", *KUBE, *options], cwd=site.folder, env=site.env, stdout=file, stderr=file
        )
    try:
        wait_for(lambda: words in out.read_text(), words)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(120) == 130
    finally:
        watching.kill()
    assert site.record()["state"] == "stopped"


def test_a_quota_that_is_used_up_is_told(site: Bench, plane: ControlPlane) -> None:
    plane.core.create_namespaced_resource_quota("default", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
    site.write("train.py", HELLO)
    try:
        wait_for(lambda: plane.core.read_namespaced_resource_quota("q", "default").status.hard, "the quota")
        assert site.mslaunch("train", *KUBE, "--detach").returncode == 0
        wait_for(lambda: "a quota is used up" in site.mslaunch("status").stdout, "the reason")
    finally:
        plane.core.delete_namespaced_resource_quota("q", "default")
        stopped = site.mslaunch("stop")
    assert stopped.returncode == 0, stopped.stderr


def test_a_detached_job_is_looked_at_and_stopped_from_here(site: Bench, plane: ControlPlane) -> None:
    """ps, status, logs, diagnose and stop work without a shared folder."""
    site.write("train.py", SLEEP)
    done = site.mslaunch("train", *KUBE, "--detach", "--json")
    run = json.loads(done.stdout)["run_id"]
    wait_for(lambda: "running" in site.mslaunch("ps").stdout, "the run to be running")
    wait_for(lambda: "sleeping" in site.mslaunch("logs", run, "--rank", "1").stdout, "the log")
    assert "running" in site.mslaunch("status", run).stdout
    stopped = site.mslaunch("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    assert plane.left() == []
    assert site.record()["state"] == "stopped"
    assert site.mslaunch("diagnose", run).returncode in (0, 1)


def test_a_detached_job_that_has_ended_is_collected_and_deleted(site: Bench) -> None:
    """Whoever looks first brings the record here; the objects go."""
    site.write("train.py", HELLO)
    assert site.mslaunch("train", *KUBE, "--detach").returncode == 0
    wait_for(lambda: "succeeded" in site.mslaunch("ps").stdout, "the run to be over")
    wait_for(lambda: "user 1000" in site.mslaunch("logs", "--rank", "0").stdout, "the log")


def test_objects_of_a_finished_job_are_deleted_by_the_cluster(site: Bench, plane: ControlPlane) -> None:
    """Nobody looks at it again: ttlSecondsAfterFinished and the owner do it."""
    site.write("train.py", HELLO)
    keep = ("--set", "launch.kubernetes={keep_seconds: 1}")
    assert site.mslaunch("train", *KUBE, *keep, "--detach").returncode == 0
    wait_for(lambda: not plane.left(), "all objects to be deleted", 120)


def test_secrets_are_in_no_file_and_no_command(site: Bench) -> None:
    """A variable without a value reaches the ranks through a Secret."""
    site.write("train.py", "import os\nprint('token', os.environ['API_TOKEN'][::-1], flush=True)\n")
    done = site.mslaunch("train", *KUBE, "--env", "API_TOKEN=hunter2hunter2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2retnuh2retnuh" in site.log(0)
    texts = [path.read_bytes() for path in site.latest.rglob("*") if path.is_file()]
    assert not any(b"hunter2hunter2" in text for text in texts)


def test_a_lost_api_server_does_not_end_a_job(site: Bench, plane: ControlPlane) -> None:
    """The submitter waits for it and goes on."""
    site.write("train.py", "import time\nprint('begun', flush=True)\ntime.sleep(12)\nprint('over', flush=True)\n")
    watching = site.start("train", *KUBE)
    wait_for(lambda: "begun" in site.log(0), "rank 0 to print")
    server = int((plane.folder / "pids").read_text().split()[1])
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            watching.wait(8)
    finally:
        os.kill(server, signal.SIGCONT)
    output, _ = watching.communicate(timeout=120)
    assert watching.returncode == 0, output
    assert "over" in site.log(0)


ALL_REDUCE = """
import mindspore as ms
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
print("sum", ops.AllReduce()(Tensor([get_rank() + 1.0], ms.float32)).asnumpy()[0], flush=True)
"""


@pytest.mark.mindspore
def test_two_pods_with_two_mindspore_ranks_each_reduce(site: Bench) -> None:
    """The sum over four ranks in two pods is right on all of them."""
    site.write("train.py", ALL_REDUCE)
    done = site.mslaunch("train", *KUBE[:-1], "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [site.log(rank).count("sum 10.0") for rank in range(4)] == [1, 1, 1, 1]


def test_the_documented_role_is_enough(site: Bench, plane: ControlPlane) -> None:
    """A submitter with exactly the rights of docs/kubernetes.md runs, follows and stops a job."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    role = yaml.safe_load(text.split("```yaml\n# role.yaml\n")[1].split("```")[0])
    plane.rbac.create_namespaced_role("default", role)
    who = {"kind": "ServiceAccount", "name": "submitter", "namespace": "default"}
    what = {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "submitter"}, "subjects": [who], "roleRef": what}
    plane.core.create_namespaced_service_account("default", {"metadata": {"name": "submitter"}})
    plane.rbac.create_namespaced_role_binding("default", binding)
    wait_for(lambda: plane.core.read_namespaced_service_account("submitter", "default").secrets, "the token")
    account = plane.core.read_namespaced_service_account("submitter", "default")
    token = plane.core.read_namespaced_secret(account.secrets[0].name, "default").data["token"]
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = base64.b64decode(token).decode()
    limited = site.write("limited.kubeconfig", yaml.safe_dump(config))
    site.env["KUBECONFIG"] = str(limited)
    site.write("train.py", HELLO)
    done = site.mslaunch("train", *KUBE)
    assert done.returncode == 0, done.stdout + done.stderr
    site.write("train.py", SLEEP)
    assert site.mslaunch("train", *KUBE, "--detach").returncode == 0
    wait_for(lambda: "running" in site.mslaunch("status").stdout, "the run to be running")
    stopped = site.mslaunch("stop")
    assert stopped.returncode == 0, stopped.stderr
