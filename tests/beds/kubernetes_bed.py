"""A real Kubernetes control plane for tests, with a stand-in for the kubelet."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.beds.join_bed import nodes
from tests.beds.kubelet_bed import Kubelet
from tests.conftest import ROOT

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
HOME = Path(os.environ.get("KUBE_HOME") or _CACHE / "mslaunch-kubernetes")
MISSING = "the Kubernetes control plane is not built: run `make kubernetes`"
PODS = 12
"""How many pods can run at once, over all jobs."""
_KINDS = {"Job": "job", "Pod": "pod", "Service": "service", "Secret": "secret", "ConfigMap": "config_map"}
_SERVER = 1
"""The API server's line among the pids."""


@dataclass
class ControlPlane:
    """The API server of the tests, as its administrator sees it."""

    folder: Path
    core: Any
    batch: Any
    rbac: Any
    kubelet: Kubelet

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def port(self) -> str:
        return str(yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]).rpartition(":")[2]

    def left(self, namespace: str = "default") -> list[str]:
        """The objects of one kind of any job that are there."""
        return next(filter(None, (self._names(kind, namespace) for kind in ("Pod", *_KINDS))), [])

    def has(self, kind: str) -> bool:
        return bool(self._names(kind, "default"))

    def _names(self, kind: str, namespace: str) -> list[str]:
        api = self.batch if kind == "Job" else self.core
        ask = getattr(api, f"list_namespaced_{_KINDS[kind]}")
        answer = ask(namespace, label_selector="mslaunch-run", _preload_content=False)
        return [f"{kind} {one['metadata']['name']}" for one in json.loads(answer.data)["items"]]

    def pods(self, part: str) -> list[str]:
        found = self.core.list_namespaced_pod("default", label_selector=f"mslaunch-part={part}").items
        return [pod.metadata.name for pod in found]

    @contextmanager
    def without_server(self) -> Iterator[None]:
        """Kill the API server; start it again at the end of the block."""
        pids = self.folder / "pids"
        all_pids = pids.read_text().split()
        server = int(all_pids[_SERVER])
        command = Path(f"/proc/{server}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(server, signal.SIGKILL)
        try:
            yield
        finally:
            with (self.folder / "kube-apiserver.log").open("ab") as log:
                again = subprocess.Popen(
                    command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                )
            all_pids[_SERVER] = str(again.pid)
            pids.write_text("\n".join(all_pids))


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Start etcd, API server, controllers and scheduler, and the stand-in kubelet; skip where they are missing."""
    if not (HOME / "bin" / "kube-scheduler").exists():
        pytest.skip(MISSING)
    with nodes(PODS) as network, tempfile.TemporaryDirectory(prefix="mslaunch-kubernetes-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plane, pods = folder / "plane", folder / "pods"
        pods.mkdir()
        start = [str(ROOT / "tools" / "kubernetes" / "start.sh"), str(plane), str(_free_ports())]
        done = subprocess.run(start, capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stderr
            from kubernetes import client, config

            api = config.new_client_from_config(str(plane / "kubeconfig"))
            core = client.CoreV1Api(api)
            _add_volcano(client.ApiextensionsV1Api(api))
            kubelet = Kubelet(core, pods, network.names, ("node-a", "node-b"))
            try:
                batch, rbac = client.BatchV1Api(api), client.RbacAuthorizationV1Api(api)
                yield ControlPlane(plane, core, batch, rbac, kubelet)
            finally:
                kubelet.close()
        finally:
            for pid in (plane / "pids").read_text().split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(plane, ignore_errors=True)


def _add_volcano(extensions: Any) -> None:
    """Have the API server know Volcano's Job; the garbage collector takes half a minute to notice that it does."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    names = {"plural": "jobs", "singular": "job", "kind": "Job"}
    spec = {"group": "batch.volcano.sh", "scope": "Namespaced", "names": names, "versions": [version]}
    extensions.create_custom_resource_definition({"metadata": {"name": "jobs.batch.volcano.sh"}, "spec": spec})


def _free_ports() -> int:
    return 26000 + os.getpid() % 700 * 5
