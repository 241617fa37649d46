"""A launcher in a container has a pid of its own there: from outside, nothing is known of it."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import Bench, wait_for

OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(autouse=True)
def _can_unshare() -> None:
    if os.geteuid() != 0 or subprocess.run([*OWN_PIDS, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a namespace of pids needs root")


def ask(bench: Bench, place: tuple[str, ...], *args: str) -> subprocess.CompletedProcess[str]:
    line = [*place, bench.program, *args]
    return subprocess.run(line, cwd=bench.folder, env=bench.env, capture_output=True, text=True, check=False)


def test_a_run_in_another_container_is_left_alone(bench: Bench) -> None:
    """It counts as running, `stop` says where it can be stopped, and `prune` keeps it."""
    bench.write("train.py", "import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.05)\n")
    bench.env["GO"] = str(bench.folder / "go")
    job = subprocess.Popen(
        [*OWN_PIDS, bench.program, "train", "-n", "1", "--run-id", "live"], cwd=bench.folder, env=bench.env
    )
    try:
        wait_for(lambda: "running" in bench.mslaunch("ps").stdout, "the run to begin")
        for place in ((), OWN_PIDS):
            assert "running" in ask(bench, place, "ps").stdout
            stopped = ask(bench, place, "stop", "live")
            assert stopped.returncode == 3
            assert "in another container. Run `mslaunch stop` there." in stopped.stderr
            assert "it is running" in ask(bench, place, "prune", "--keep", "0").stdout
    finally:
        (bench.folder / "go").touch()
        assert job.wait() == 0
    assert "succeeded" in bench.mslaunch("ps").stdout
