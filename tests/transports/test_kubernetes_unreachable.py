"""A cluster that cannot be used: told in one sentence, soon, and no process stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, Bench

pytest.importorskip("kubernetes")
KUBE = ("--transport", "kubernetes", "--image", "job:1", "-N", "2", "--workers", "2")
GUARD = "from mslaunch.transports.kubernetes.deletion_guard import main"
NOWHERE = "https://127.0.0.1:1"


@pytest.fixture
def kubeconfig(tmp_path: Path, bench: Bench) -> Path:
    """A kubeconfig whose server does not answer."""
    path = tmp_path / "kubeconfig"
    settings = {
        "clusters": [{"name": "c", "cluster": {"server": NOWHERE}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "team", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "team",
    }
    path.write_text(yaml.safe_dump(settings))
    bench.env["KUBECONFIG"] = str(path)
    return path


def guards(kubeconfig: Path) -> list[int]:
    """The guards that this test's commands have started and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if GUARD.encode() in command and str(kubeconfig).encode() in environment:
            found.append(int(folder.name))
    return found


def test_a_server_that_does_not_answer_is_one_sentence(bench: Bench, kubeconfig: Path) -> None:
    """Nothing was created, so no process stays that would delete it."""
    bench.write("train.py", "")
    done = bench.mslaunch("train", *KUBE)
    assert done.returncode == 3
    assert done.stderr == (
        f"mslaunch: the API server at {NOWHERE} does not answer: connection refused. "
        "Nothing was submitted. See `kubectl cluster-info`, or set KUBECONFIG.\n"
    )
    assert guards(kubeconfig) == []
    assert not any(bench.runs.glob("*/run.json"))


def test_sigterm_ends_the_guard(bench: Bench, kubeconfig: Path) -> None:
    """It is asked while it tries to delete a job of a server that does not answer."""
    assert kubeconfig.exists()
    command = [sys.executable, "-c", f"print('up', flush=True); {GUARD}; main()"]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=bench.env)
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.write(b"team/job mark\n")
    guard.stdin.close()
    assert guard.stdout.readline() == b"up\n"
    guard.terminate()
    assert guard.wait(60) == -signal.SIGTERM


def test_without_a_kubeconfig_it_says_which_file_it_looked_for(bench: Bench, tmp_path: Path) -> None:
    missing = tmp_path / "none"
    bench.env["KUBECONFIG"] = str(missing)
    bench.write("train.py", "")
    done = bench.mslaunch("train", *KUBE)
    assert done.returncode == 2
    assert done.stderr == (
        f"mslaunch: the kubeconfig {missing} is not there or is empty, and this is no pod. "
        "Set KUBECONFIG, or see `kubectl config view`.\n"
    )


def test_an_unknown_context_is_told_with_the_nearest(bench: Bench, kubeconfig: Path) -> None:
    bench.write("train.py", "")
    done = bench.mslaunch("train", *KUBE, "--set", "launch.kubernetes={context: taem}")
    assert done.returncode == 2
    assert done.stderr == (
        f"mslaunch: launch.kubernetes.context: the kubeconfig {kubeconfig} has no context 'taem'; "
        "did you mean 'team'?\n"
    )
