"""Jobs on a real Kubernetes control plane; a stand-in for the kubelet runs the pods on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import Bench, wait_for
from tests.kubernetes_bed import NO_IMAGE, ControlPlane, control_plane

KUBE = ("--transport", "kubernetes", "--image", "job:1", "-N", "2", "--workers", "2")
HELLO = "import os\nprint('rank', os.environ['RANK_ID'], 'user', os.getuid(), flush=True)\n"
SLEEP = "import time\nprint('sleeping', flush=True)\ntime.sleep(600)\n"
FAIL = "import os\nif os.environ['RANK_ID'] == '1':\n    raise ValueError('no such luck')\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as plane:
        yield plane


@pytest.fixture
def site(bench: Bench, plane: ControlPlane) -> Iterator[Bench]:
    """A folder to submit from; nothing of any job may be left after the test."""
    bench.env["KUBECONFIG"] = str(plane.kubeconfig)
    yield bench
    wait_for(lambda: not plane.left(), "all objects to be deleted")
    wait_for(lambda: not plane.kubelet.running(), "all pods to end")


def test_a_job_is_submitted_and_followed(site: Bench, plane: ControlPlane) -> None:
    """Its ranks run in two pods, not as root; output, record and logs are on the submitter's machine."""
    site.write("train.py", HELLO)
    done = site.mslaunch("train", *KUBE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 user 1000" in done.stdout
    assert site.record()["state"] == "succeeded"
    assert site.record()["transport"] == "kubernetes"
    assert "rank 1 user 1000" in site.log(1)
    assert len({rank["host"] for rank in site.record()["ranks"]}) == 2
