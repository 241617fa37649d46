"""Real Kubernetes nodes for tests: kubelet, containerd and runc in namespaces of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mslaunch.shared.guard import processes_with
from tests.beds.kubernetes_bed import HOME
from tests.conftest import MSLAUNCH, ROOT, Bench

SCRIPT = str(ROOT / "tools" / "kubernetes" / "nodes.sh")
IMAGE = "docker.io/local/job:1"
MISSING = "kubelet, containerd or runc is missing: run `make kubernetes`"
GROUPS = Path("/sys/fs/cgroup")
SECONDS = 180.0
ENDING = 15.0
"""Seconds in which processes that were killed are gone, with the namespaces that they began."""


@dataclass(frozen=True)
class RealNodes:
    """A control plane and its nodes."""

    folder: Path

    def kubectl(self, *words: str) -> str:
        command = [SCRIPT, "run", str(self.folder), str(HOME / "bin" / "kubectl"), *words]
        env = {**os.environ, "KUBECONFIG": str(self.folder / "plane" / "kubeconfig")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
        return done.stdout

    def pods(self, run: str, part: str) -> list[dict[str, Any]]:
        chosen = f"mslaunch-run={run},mslaunch-part={part}"
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-l", chosen, "-o", "json"))["items"]
        return found

    def lose(self, node: str) -> None:
        """Switch a node off."""
        subprocess.run([SCRIPT, "lose", str(self.folder), node], check=True, timeout=SECONDS)

    def prepare(self, bench: Bench) -> None:
        """Have a folder's commands reach the API server."""
        program = bench.write(
            "mslaunch-near-the-nodes", f'#!/bin/sh\nexec {SCRIPT} run {self.folder} {MSLAUNCH} "$@"\n'
        )
        program.chmod(0o755)
        bench.program = str(program)
        bench.env["KUBECONFIG"] = str(self.folder / "plane" / "kubeconfig")


def _why_not() -> str | None:
    """Why no nodes can be started here."""
    if os.geteuid() != 0:
        return "Kubernetes nodes need root"
    if not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return "ip, unshare or nsenter is not installed (Debian: iproute2, util-linux)"
    if not all((HOME / "bin" / name).exists() for name in ("kubelet", "containerd", "runc", "bridge", "busybox")):
        return MISSING
    if not os.access(GROUPS / "memory" / "cgroup.procs", os.W_OK):
        return "Kubernetes nodes need control groups of version 1 that can be written"
    return None


@contextmanager
def real_nodes(*names: str) -> Iterator[RealNodes]:
    """Start nodes; in the end no process, namespace or control group of them may be left."""
    if why := _why_not():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="mslaunch-nodes-", dir="/tmp"))
    folder.chmod(0o755)
    pythons = " ".join(sorted({sys.base_prefix, sys.prefix, str(ROOT)}))
    try:
        command = [SCRIPT, "up", str(folder), *names]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONS": pythons}, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr
        yield RealNodes(folder)
    finally:
        subprocess.run([SCRIPT, "down", str(folder)], timeout=SECONDS)
        own = (folder / "id").read_text().strip()
        left = _end_what_is_left(f"MSLAUNCH_NODES={folder}")
        shutil.rmtree(folder, ignore_errors=True)
        networks = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
        assert left == []
        assert own not in networks
        assert list(GROUPS.glob(f"*/{own}-*")) == []


def _end_what_is_left(mark: str) -> list[str]:
    """Wait for the end of a cluster's processes, which were killed; kill those that stay, and return their commands."""
    end = time.monotonic() + ENDING
    while (pids := processes_with(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    commands = []
    for pid in pids:
        with suppress(OSError):
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            os.kill(pid, signal.SIGKILL)
    return commands
