"""Kubernetes from the submitter's machine: looking at jobs, where it is, and what else creates the objects."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.beds.join_bed import start_here
from tests.beds.kubernetes_bed import HOME, ControlPlane
from tests.beds.terminal_bed import start_in_tmux
from tests.conftest import ROOT, Bench, wait_for
from tests.transports.test_kubernetes import HELLO, KUBE, SMALL

STEPS = """
import time

step = 0
while True:
    step += 1
    print(f"epoch: 1 step: {step}, loss is {1 / step:.4f}", flush=True)
    time.sleep(0.2)
"""


def test_every_verb_works_without_a_shared_folder(submitter: Bench, plane: ControlPlane) -> None:
    """On a detached job that runs, and again once it was stopped."""
    submitter.write("train.py", STEPS)
    done = submitter.mslaunch("train", *KUBE, "--detach", "--json")
    run = json.loads(done.stdout)["run_id"]
    logs = start_here(submitter, "logs", "-f", run, "--rank", "1")
    attached = start_here(submitter, "attach", run)
    later = r"step: \d\d+,"  # whoever comes late sees the last lines only
    wait_for(lambda: re.search(later, logs.text), "the log to be followed")
    wait_for(lambda: re.search(later, attached.text), "the output to be followed")
    assert "running" in submitter.mslaunch("ps").stdout
    assert "running" in submitter.mslaunch("status", run).stdout
    _watch(submitter, run, "running")
    attached.process.send_signal(signal.SIGINT)
    attached.wait()
    stopped = submitter.mslaunch("stop", run)
    assert stopped.returncode == 0, stopped.stderr
    assert plane.kubelet.running() == []
    assert logs.wait() == 0, logs.text
    assert submitter.record()["state"] == "stopped"
    assert "stopped" in submitter.mslaunch("ps").stdout
    assert "stopped" in submitter.mslaunch("status", run).stdout
    assert "step: 5," in submitter.mslaunch("logs", run, "--rank", "0").stdout
    _watch(submitter, run, "stopped")
    assert "stopped" in submitter.mslaunch("attach", run).stdout
    assert "stopped" in submitter.mslaunch("diagnose", run).stdout
    report = submitter.mslaunch("report", run, "-o", "report.html")
    assert report.returncode == 0, report.stderr
    assert "loss" in (submitter.folder / "report.html").read_text()


def _watch(submitter: Bench, run: str, state: str) -> None:
    view = start_in_tmux(submitter, "watch", run, columns=100)
    try:
        wait_for(lambda: all(word in " ".join(view.screen()) for word in (state, "loss")), f"{state} on the screen")
    finally:
        view.run("kill-server")


def test_runs_and_code_may_lie_on_claims(submitter: Bench, plane: ControlPlane) -> None:
    """What ranks write outlives the pods; whoever looks first at the ended job brings its record here."""
    for claim in ("runs", "project"):
        _make_claim(plane, claim)
    project = plane.kubelet.claim("project")
    (project / "train.py").write_text("open('made.txt', 'w').write('made')\nprint('from the claim')\n")
    submitter.write("train.py", "raise SystemExit('this is not sent')\n")
    settings = "{runs_claim: runs, code: /project, volumes: [{claim: project, path: /project}]}"
    done = submitter.mslaunch("train", *KUBE, "--detach", "--set", f"launch.kubernetes={settings}")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "succeeded" in submitter.mslaunch("ps").stdout, "the run to be over")
    assert "from the claim" in submitter.log(0)
    run = plane.kubelet.claim("runs") / submitter.record()["run_id"]
    assert [(run / f"rank_{rank}" / "work" / "made.txt").read_text() for rank in range(2)] == ["made", "made"]


def _make_claim(plane: ControlPlane, name: str) -> None:
    size = {"storage": "1Gi"}
    disk = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "hostPath": {"path": "/none"}, "capacity": size}
    wanted = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name}
    plane.core.create_persistent_volume({"metadata": {"name": name}, "spec": disk})
    claim = {"metadata": {"name": name}, "spec": {**wanted, "resources": {"requests": size}}}
    plane.core.create_namespaced_persistent_volume_claim("default", claim)
    is_bound = lambda: plane.core.read_namespaced_persistent_volume_claim(name, "default").status.phase == "Bound"  # noqa: E731
    wait_for(is_bound, "the claim to be bound")


def test_objects_of_a_finished_job_are_deleted_by_the_cluster(submitter: Bench, plane: ControlPlane) -> None:
    """Nobody looks at it again: ttlSecondsAfterFinished and the owner do it."""
    submitter.write("train.py", HELLO)
    keep = ("--set", "launch.kubernetes={keep_seconds: 1}")
    assert submitter.mslaunch("train", *SMALL, *keep, "--detach").returncode == 0
    wait_for(lambda: not plane.left(), "all objects to be deleted", 120)


def test_kubectl_runs_the_rendered_file(submitter: Bench) -> None:
    """The launcher's log holds the job's output; deleting the file's objects leaves nothing."""
    kubectl = str(HOME / "bin" / "kubectl")
    if not Path(kubectl).exists():
        pytest.skip("kubectl is not there: remove ~/.cache/mslaunch-kubernetes and run `make kubernetes`")
    submitter.write("train.py", HELLO)
    done = submitter.mslaunch("render", "--method", "kubernetes", *SMALL[2:], "-o", "job.yaml")
    assert done.returncode == 0, done.stderr
    objects = yaml.safe_load_all((submitter.folder / "job.yaml").read_text())
    job = next(f"job/{one['metadata']['name']}" for one in objects if one["kind"] == "Job")

    def run(*words: str) -> str:
        command = [kubectl, *words]
        return subprocess.run(command, cwd=submitter.folder, env=submitter.env, capture_output=True, text=True).stdout

    assert "created" in run("apply", "-f", "job.yaml")
    run("wait", "--for=condition=complete", "--timeout=90s", job)
    assert "rank 0 user 1000" in run("logs", job)
    run("delete", "-f", "job.yaml")


def test_a_submitter_in_a_pod_needs_the_documented_role_only(submitter: Bench, plane: ControlPlane) -> None:
    """It has the files and variables that Kubernetes gives a pod, and no kubeconfig."""
    account = _service_account(plane, submitter.folder.parent / "account")
    program = submitter.folder.parent / "mslaunch-in-a-pod"
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    inside = (
        f'mount -t tmpfs none /run; mkdir -p {place}; mount --bind {account} {place}; exec {submitter.program} "$@"'
    )
    program.write_text(
        "#!/bin/sh\n"
        f"export KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT={plane.port} HOME=/nonexistent\n"
        "unset KUBECONFIG\n"
        f'exec unshare --mount sh -c {shlex.quote(inside)} sh "$@"\n'
    )
    program.chmod(0o755)
    submitter.program = str(program)
    submitter.write("train.py", STEPS)
    assert submitter.mslaunch("train", *SMALL, "--detach").returncode == 0
    wait_for(lambda: "step: 5," in submitter.mslaunch("logs", "--rank", "0").stdout, "the log")
    stopped = submitter.mslaunch("stop")
    assert stopped.returncode == 0, stopped.stderr


def _service_account(plane: ControlPlane, folder: Path) -> Path:
    """A service account with the role of the documentation; return the files that its pods have."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    role = yaml.safe_load(text.split("```yaml\n# role.yaml\n")[1].split("```")[0])
    plane.rbac.create_namespaced_role("default", role)
    who = {"kind": "ServiceAccount", "name": "submitter", "namespace": "default"}
    what = {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": "rbac.authorization.k8s.io"}
    plane.core.create_namespaced_service_account("default", {"metadata": {"name": "submitter"}})
    binding = {"metadata": {"name": "submitter"}, "subjects": [who], "roleRef": what}
    plane.rbac.create_namespaced_role_binding("default", binding)
    wait_for(lambda: plane.core.read_namespaced_service_account("submitter", "default").secrets, "the token")
    account = plane.core.read_namespaced_service_account("submitter", "default")
    token = plane.core.read_namespaced_secret(account.secrets[0].name, "default").data["token"]
    folder.mkdir()
    (folder / "token").write_bytes(base64.b64decode(token))
    (folder / "namespace").write_text("default")
    shutil.copy(plane.folder / "certs" / "apiserver.crt", folder / "ca.crt")
    return folder


def test_code_that_is_too_large_is_told_before_anything_is_created(submitter: Bench, plane: ControlPlane) -> None:
    """The sentence names the way out."""
    submitter.write("train.py", HELLO)
    for number in range(4):
        submitter.write(f"table_{number}.py", f"DATA = '{base64.b64encode(os.urandom(300 << 10)).decode()}'\n")
    done = submitter.mslaunch("train", *SMALL)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "KB packed, and Kubernetes takes 900 KB" in done.stderr
    assert "launch.kubernetes.code" in done.stderr
    assert plane.left() == []


@pytest.mark.parametrize("content", ["{", "- a\n"], ids=["cut", "list"])
def test_a_broken_kubeconfig_is_one_sentence(bench: Bench, content: str) -> None:
    bench.write("train.py", HELLO)
    bench.env["KUBECONFIG"] = str(bench.write("kubeconfig", content))
    done = bench.mslaunch("train", *SMALL)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "kubeconfig cannot be used: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_of_volcano_is_created_and_deleted(submitter: Bench, plane: ControlPlane) -> None:
    """The API server knows the kind; nobody makes pods of it here, so the job waits."""
    submitter.write("train.py", HELLO)
    done = submitter.mslaunch("train", *SMALL, "--volcano", "--detach")
    assert done.returncode == 0, done.stderr
    assert "default/volcano/" in done.stdout
    assert plane.has("Service")
    assert "queued" in submitter.mslaunch("status").stdout
    stopped = submitter.mslaunch("stop")
    assert stopped.returncode == 0, stopped.stderr


CREATE_TWICE = """
import copy
from mslaunch.errors import NotReadyError
from mslaunch.transports.kubernetes.api_server import JobObjects, parse_job
from mslaunch.transports.kubernetes.manifests import SUBMISSION

pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "twice", "annotations": {SUBMISSION: "a"}}}
body["spec"] = {"parallelism": 0, "template": {"spec": pod}}
cluster = JobObjects(parse_job("default/twice"))
first = cluster.create(body)
print(cluster.create(body)["metadata"]["uid"] == first["metadata"]["uid"])
other = copy.deepcopy(body)
other["metadata"]["annotations"][SUBMISSION] = "b"
try:
    cluster.create(other)
except NotReadyError as error:
    print(error)
cluster.delete()
"""


def test_a_job_is_known_again_when_the_answer_to_its_creation_was_lost(submitter: Bench) -> None:
    """Created once more it is the same; one of another submission is refused."""
    command = [sys.executable, "-c", CREATE_TWICE]
    done = subprocess.run(command, env=submitter.env, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "True",
        'cannot create Job twice: jobs.batch "twice" already exists. Give another --run-id.',
    ], done.stderr
