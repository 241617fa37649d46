"""Commands as PID 1 of a container, for which the kernel drops every signal that has no handler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import pytest

from tests.beds.join_bed import SECRET, Node
from tests.conftest import MSLAUNCH, Bench, wait_for

POD = (sys.executable, "-m", "mslaunch.transports.kubernetes.pod")
WAITING = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def needs_namespaces() -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("process namespaces need root and unshare")


def start_first(bench: Bench, *command: str) -> Node:
    """Start a command as the first process of a namespace."""
    return Node(bench, ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *command], "first", {})


def terminate(node: Node) -> int:
    """Send SIGTERM to the first process; return the exit code."""
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    os.kill(int(children.read_text().split()[0]), signal.SIGTERM)
    try:
        return node.wait(20)
    except subprocess.TimeoutExpired:
        return -1


@pytest.mark.usefixtures("needs_namespaces")
def test_a_node_that_waits_for_its_launcher_ends_when_it_is_asked_to(bench: Bench) -> None:
    """Whether the launcher's name does not resolve yet, or nobody answers there."""
    secret = str(bench.write("secret", SECRET + "\n"))
    cases = {
        ("agent", "--join", "127.0.0.1:9", "--secret-file", secret): "waiting for the launcher",
        ("agent", "--join", "nowhere.invalid"): "waiting for the name",
    }
    codes = []
    for command, words in cases.items():
        node = start_first(bench, MSLAUNCH, *command)
        wait_for(partial(_shows, node, words), words)
        codes.append(terminate(node))
    assert codes == [143, 143]


@pytest.mark.usefixtures("needs_namespaces")
def test_the_launchers_pod_ends_when_it_is_asked_to(bench: Bench, tmp_path: Path) -> None:
    """While it unpacks the code, here from a pipe that nobody writes to, and while the launcher runs."""
    archive, pipe = tmp_path / "code.tar.gz", tmp_path / "pipe"
    with tarfile.open(archive, "w:gz"):
        pass
    os.mkfifo(pipe)
    launcher = (sys.executable, "-c", WAITING)
    codes = []
    for code in (pipe, archive):
        node = start_first(bench, *POD, str(bench.runs / "r"), str(bench.folder), str(code), *launcher)
        if code != pipe:
            wait_for(partial(_shows, node, "up"), "the launcher to run")
        wait_for(partial(_handles_sigterm, node), "a handler")
        codes.append(terminate(node))
    assert codes == [143, 143]


def _shows(node: Node, words: str) -> bool:
    return words in node.text


def _handles_sigterm(node: Node) -> bool:
    """Whether the first process has a handler for SIGTERM."""
    children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children").read_text().split()
    lines = Path(f"/proc/{children[0]}/status").read_text().splitlines() if children else []
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)
