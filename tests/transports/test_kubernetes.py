"""Jobs on a real Kubernetes control plane; a stand-in for the kubelet runs the pods on this machine."""

from __future__ import annotations

import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.beds.join_bed import Node, start_here
from tests.beds.kubelet_bed import DEVICE, NO_IMAGE
from tests.beds.kubernetes_bed import ControlPlane
from tests.conftest import Bench, wait_for

KUBE = ("--transport", "kubernetes", "--image", "job:1", "-N", "2", "--workers", "2")
SMALL = (*KUBE[:-4], "-N", "1", "--workers", "2")
HELLO = "import os\nprint('rank', os.environ['RANK_ID'], 'user', os.getuid(), flush=True)\n"
SLEEP = "import time\nprint('sleeping', flush=True)\ntime.sleep(600)\n"
FAIL = (
    "import os\nif os.environ['RANK_ID'] == '1':\n    raise ValueError('no such luck')\nimport time\ntime.sleep(600)\n"
)


def start_sleeping(submitter: Bench, *options: str) -> subprocess.Popen[str]:
    """Start a job that only sleeps, and wait until its output is here."""
    submitter.write("train.py", SLEEP)
    watching = submitter.start("train", *SMALL, *options)
    wait_for(lambda: "sleeping" in submitter.log(0), "rank 0 to print")
    return watching


def test_a_job_is_submitted_and_followed(submitter: Bench) -> None:
    """Its ranks run in two pods, not as root; output, record and logs are on the submitter's machine."""
    submitter.write("train.py", HELLO)
    done = submitter.mslaunch("train", *KUBE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 user 1000" in done.stdout
    assert submitter.record()["state"] == "succeeded"
    assert submitter.record()["transport"] == "kubernetes"
    assert "rank 1 user 1000" in submitter.log(1)
    assert len({rank["host"] for rank in submitter.record()["ranks"]}) == 2


def test_two_jobs_with_odd_names_run_at_once(submitter: Bench, tmp_path: Path) -> None:
    """A folder, a script and a run may be called what they like; a secret variable is in no file of the run."""
    submitter.folder = tmp_path / "it's a $HOME & «jöb»"
    submitter.write("träin it.py", "import os\nprint('token', os.environ['API_TOKEN'][::-1], flush=True)\n")
    options = (*KUBE, "--env", "API_TOKEN=hunter2hunter2", "--run-id")
    started = [submitter.start("train", *options, run, "träin it.py") for run in ("My_Run.1", "my-run-1")]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    for run in ("My_Run.1", "my-run-1"):
        assert "2retnuh2retnuh" in (submitter.runs / run / "rank_1" / "log.txt").read_text()
    assert not any(b"hunter2hunter2" in path.read_bytes() for path in submitter.runs.rglob("*") if path.is_file())


def test_a_job_has_tags_variables_and_settings_that_have_no_flag(submitter: Bench) -> None:
    """Kubernetes replaces nothing in them: a $(NAME) is the user's."""
    submitter.write(
        "train.py", "import os\nprint(*(os.environ[n] for n in ('MODE', 'HERE', 'FROM_SETUP')), flush=True)\n"
    )
    setup = "launch.setup=export FROM_SETUP=$(echo 4)$((1 + 1))"
    options = ("--tag", "a", "--env", "MODE=$(HOME) $$", "--env", "HERE", "--set", setup)
    done = submitter.mslaunch("train", *SMALL, *options, HERE="near")
    assert done.returncode == 0, done.stdout + done.stderr
    assert submitter.log(1) == "$(HOME) $$ near 42\n"


def test_a_rank_that_fails_is_the_verdict(submitter: Bench) -> None:
    """The first failure is named, with its log here, and the exit code is the job's."""
    submitter.write("train.py", FAIL)
    done = submitter.mslaunch("train", *SMALL)
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stdout
    assert submitter.record()["verdict"]["rank"] == 1
    assert "no such luck" in submitter.log(1)


def test_ctrl_c_cancels_the_job(submitter: Bench, plane: ControlPlane) -> None:
    watching = start_sleeping(submitter)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(120) == 130
    assert submitter.record()["state"] == "stopped"
    assert plane.kubelet.running() == []


def test_a_submitter_that_is_killed_leaves_nothing(submitter: Bench, plane: ControlPlane) -> None:
    """A process of its own deletes the job, whenever that is: while its objects are created, just after, and later."""
    submitter.write("train.py", SLEEP)
    for kind in ("Job", "Service", "Pod"):
        watching = submitter.start("train", *SMALL)
        wait_for(partial(plane.has, kind), f"a {kind}")
        watching.kill()
        watching.wait()
        wait_for(lambda: not plane.left(), "all objects to be deleted")


def test_what_cannot_be_created_whole_is_deleted(submitter: Bench, plane: ControlPlane) -> None:
    """Here a quota refuses the Service; the job of the same name that is there already is left alone."""
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"services": "0"}}}
    submitter.write("train.py", SLEEP)
    assert submitter.mslaunch("train", *SMALL, "--run-id", "same", "--detach").returncode == 0
    (submitter.runs / "same").rename(submitter.folder / "elsewhere")
    again = submitter.mslaunch("train", *SMALL, "--run-id", "same")
    assert 'jobs.batch "same" already exists. Give another --run-id.' in again.stderr
    plane.core.create_namespaced_resource_quota("default", quota)
    try:
        wait_for(lambda: plane.core.read_namespaced_resource_quota("none", "default").status.hard, "the quota")
        done = submitter.mslaunch("train", *SMALL, "--run-id", "other")
    finally:
        plane.core.delete_namespaced_resource_quota("none", "default")
    assert done.returncode == 3
    assert "cannot create Service other: " in done.stderr
    wait_for(lambda: not any("other" in name for name in plane.left()), "the objects to be deleted")
    assert plane.has("Pod")
    plane.batch.delete_namespaced_job("same", "default", propagation_policy="Foreground")


def test_a_pod_out_of_memory_is_the_cause(submitter: Bench, plane: ControlPlane) -> None:
    """What only Kubernetes knows replaces `host lost` in the verdict."""
    watching = start_sleeping(submitter)
    pod = plane.pods("worker")[0]
    plane.kubelet.end(pod, "OOMKilled")
    output, _ = watching.communicate(timeout=120)
    assert watching.returncode not in (0, None)
    verdict = submitter.record()["verdict"]
    assert verdict["cause"] == "kubernetes", output
    assert f"pod {pod} on node-" in verdict["summary"]
    assert "used more memory than its limit (OOMKilled)" in output


def test_it_is_told_why_pods_wait(submitter: Bench, plane: ControlPlane) -> None:
    """Which resource is missing, an image, a quota; Ctrl-C cancels such jobs as well."""
    plane.core.create_namespace({"metadata": {"name": "small"}})
    plane.core.create_namespaced_resource_quota("small", {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})
    wait_for(lambda: plane.core.read_namespaced_resource_quota("q", "small").status.hard, "the quota")
    cases = {
        f"too little {DEVICE} is free": ["--set", f"launch.kubernetes={{resources: {{{DEVICE}: 9}}}}"],
        "its image cannot be pulled (ImagePullBackOff": ["--image", NO_IMAGE],
        "a quota is used up": ["--namespace", "small"],
    }
    submitter.write("train.py", HELLO)
    started = {words: start_here(submitter, "train", *SMALL, *options) for words, options in cases.items()}
    for words, job in started.items():
        wait_for(partial(_shows, job, words), words)
        job.process.send_signal(signal.SIGINT)
    assert [job.wait() for job in started.values()] == [130] * len(cases)
    wait_for(lambda: not plane.left("small"), "the objects to be deleted")


def _shows(job: Node, words: str) -> bool:
    return words in job.text


def test_workers_that_cannot_start_end_the_job(submitter: Bench) -> None:
    """The launcher would wait for them in vain; what the pod printed is told."""
    submitter.write("train.py", HELLO)
    command = ["sh", "-c", "echo mslaunch is not in this image; exit 3"]
    spec = {"containers": [{"name": "worker", "command": command}]}
    patch = {"worker": {"spec": {"template": {"spec": spec}}}}
    done = submitter.mslaunch("train", *SMALL, "--set", f"launch.kubernetes={{patch: {patch}}}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "ended with code 3 before the job began: mslaunch is not in this image" in done.stdout


def test_a_lost_api_server_does_not_end_a_job(submitter: Bench, plane: ControlPlane) -> None:
    """It is killed while the job prints; the submitter waits for it, and has every line in the end."""
    submitter.write(
        "train.py", "import time\nfor n in range(50):\n    print('line', n, flush=True)\n    time.sleep(0.1)\n"
    )
    watching = submitter.start("train", *SMALL)
    wait_for(lambda: "line 1" in submitter.log(0), "rank 0 to print")
    with plane.without_server(), pytest.raises(subprocess.TimeoutExpired):
        watching.wait(2)
    output, _ = watching.communicate(timeout=120)
    assert watching.returncode == 0, output
    assert submitter.log(0).splitlines() == [f"line {number}" for number in range(50)]
