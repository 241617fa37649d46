"""A real Kubernetes control plane, and a stand-in for the kubelet: it runs a pod's command as a process here.

The stand-in registers nodes, runs each pod in a network and a mount namespace of its own, as the pod's user, with its
environment, ConfigMaps and Secrets, and a hosts file for headless Services; it reports status and serves logs. There
are no images, no limits and no probes.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.join_bed import nodes

HOME = Path(os.environ.get("KUBE_HOME") or Path.home() / ".cache" / "mslaunch-kubernetes")
MISSING = "the Kubernetes control plane is not built: run `make kubernetes`"
NO_IMAGE = "registry.invalid/missing:1"
DEVICE = "huawei.com/Ascend910"
PODS = 6


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PodProcess:
    """One pod that runs, or has run."""

    namespace: str
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    started: str
    reason: str = ""
    reported: bool = False
    asked_to_end: float | None = None


class Kubelet:
    """The stand-in for the kubelets of two nodes."""

    def __init__(self, core: Any, folder: Path, namespaces: tuple[str, ...], names: tuple[str, ...]) -> None:
        self.core = core
        self.folder = folder
        self.names = names
        self.pods: dict[str, PodProcess] = {}
        self._free = [(name, f"10.213.9.{number + 1}") for number, name in enumerate(namespaces)]
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._stop = threading.Event()
        self._server = _serve_logs(self)
        self._beat = 0.0
        for name in names:
            self._register(name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._server.shutdown()
        for pod in self.pods.values():
            _end(pod, signal.SIGKILL)

    def end(self, name: str, reason: str) -> None:
        """End a pod as a kubelet does for this reason: OOMKilled, Evicted."""
        pod = self.pods[name]
        pod.reason = reason
        _end(pod, signal.SIGKILL)

    def running(self) -> list[str]:
        return [name for name, pod in self.pods.items() if pod.process.poll() is None]

    def _register(self, name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        self.core.create_node(body)

    def _node_status(self, name: str) -> None:
        amount = {"cpu": "8", "memory": "64Gi", "pods": "20", DEVICE: "8"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "",
            "lastHeartbeatTime": _now(),
        }
        status = {
            "capacity": amount,
            "allocatable": amount,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
        }
        self.core.patch_node_status(name, {"status": status})

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            with suppress(Exception):  # the control plane may be away for a while
                self._turn()

    def _turn(self) -> None:
        if time.monotonic() > self._beat:
            for name in self.names:
                self._node_status(name)
            self._beat = time.monotonic() + 5
        answer = self.core.list_pod_for_all_namespaces(_preload_content=False)
        pods = [pod for pod in json.loads(answer.data)["items"] if pod["spec"].get("nodeName") in self.names]
        self._write_hosts(pods)
        for pod in pods:
            self._care_for(pod)
        present = {pod["metadata"]["name"] for pod in pods}
        for name in [name for name in self.pods if name not in present]:
            gone = self.pods.pop(name)
            _end(gone, signal.SIGKILL)
            self._free.append((gone.namespace, gone.address))

    def _care_for(self, pod: dict[str, Any]) -> None:
        known = self.pods.get(pod["metadata"]["name"])
        if known is None:
            if pod["metadata"].get("deletionTimestamp"):
                self._remove(pod)
            elif pod["spec"]["containers"][0]["image"] == NO_IMAGE:
                waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{NO_IMAGE}"'}
                self._report(pod, "Pending", {"waiting": waiting})
            elif self._free and pod["status"].get("phase") == "Pending":
                self._start(pod)
            return
        code = known.process.poll()
        if pod["metadata"].get("deletionTimestamp") and code is None:
            self._ask_to_end(pod, known)
        elif code is not None and not known.reported:
            self._report_end(pod, known, code)
            known.reported = True
        if pod["metadata"].get("deletionTimestamp") and code is not None:
            self._remove(pod)

    def _ask_to_end(self, pod: dict[str, Any], known: PodProcess) -> None:
        if known.asked_to_end is None:
            known.asked_to_end = time.monotonic()
            _end(known, signal.SIGTERM, first_only=True)
        elif time.monotonic() - known.asked_to_end > (pod["metadata"].get("deletionGracePeriodSeconds") or 30):
            _end(known, signal.SIGKILL)

    def _remove(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.core.delete_namespaced_pod(meta["name"], meta["namespace"], grace_period_seconds=0)

    def _report(self, pod: dict[str, Any], phase: str, state: dict[str, Any], **more: Any) -> None:
        container = pod["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status |= {"ready": phase == "Running", "state": state}
        body = {"status": {"phase": phase, "containerStatuses": [status], **more}}
        self.core.patch_namespaced_pod_status(pod["metadata"]["name"], pod["metadata"]["namespace"], body)

    def _report_end(self, pod: dict[str, Any], known: PodProcess, code: int) -> None:
        code = code if code >= 0 else 128 - code
        terminated = {"exitCode": code, "startedAt": known.started, "finishedAt": _now()}
        terminated["reason"] = "OOMKilled" if known.reason == "OOMKilled" else "Error" if code else "Completed"
        more = {"reason": known.reason} if known.reason not in ("", "OOMKilled") else {}
        self._report(pod, "Failed" if code else "Succeeded", {"terminated": terminated}, **more)

    def _start(self, pod: dict[str, Any]) -> None:
        mounts = self._mounts(pod)
        if mounts is None:
            return
        namespace, address = self._free.pop(0)
        name = pod["metadata"]["name"]
        own = self.folder / name
        script = own / "start.sh"
        script.write_text(_script(pod, mounts, self._hosts, self._environment(pod)))
        log = own / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "sh", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pods[name] = PodProcess(namespace, address, process, log, _now())
        running = {"running": {"startedAt": _now()}}
        self._report(pod, "Running", running, podIP=address, podIPs=[{"ip": address}], startTime=_now())

    def _mounts(self, pod: dict[str, Any]) -> dict[str, Path] | None:
        """Where each volume lies on this machine, by its path in the pod; None while an object is missing."""
        own = self.folder / pod["metadata"]["name"]
        sources = {}
        for volume in pod["spec"].get("volumes") or ():
            files = self._files(volume, pod["metadata"]["namespace"])
            if files is None:
                return None
            source = own / volume["name"]
            source.mkdir(parents=True, exist_ok=True)
            source.chmod(0o777)
            for file, content in files.items():
                (source / file).write_bytes(content)
                (source / file).chmod(0o440 if "secret" in volume else 0o644)
                os.chown(source / file, 0, pod["spec"]["securityContext"]["fsGroup"])
            sources[volume["name"]] = source
        mounted = pod["spec"]["containers"][0]["volumeMounts"]
        return {mount["mountPath"]: sources[mount["name"]] for mount in mounted}

    def _files(self, volume: dict[str, Any], namespace: str) -> dict[str, bytes] | None:
        from kubernetes.client import ApiException

        try:
            if "configMap" in volume:
                found = self.core.read_namespaced_config_map(volume["configMap"]["name"], namespace)
                plain = {key: value.encode() for key, value in (found.data or {}).items()}
                binary = {key: _plain(value) for key, value in (found.binary_data or {}).items()}
                return plain | binary
            if "secret" in volume:
                found = self.core.read_namespaced_secret(volume["secret"]["secretName"], namespace)
                return {key: _plain(value) for key, value in (found.data or {}).items()}
        except ApiException:
            return None
        return {}

    def _environment(self, pod: dict[str, Any]) -> dict[str, str]:
        from kubernetes.client import ApiException

        container = pod["spec"]["containers"][0]
        variables = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        for source in container.get("envFrom") or ():
            with suppress(ApiException):
                secret = source["secretRef"]["name"]
                found = self.core.read_namespaced_secret(secret, pod["metadata"]["namespace"])
                variables |= {key: _plain(value).decode() for key, value in (found.data or {}).items()}
        return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin", **variables}

    def _write_hosts(self, pods: list[dict[str, Any]]) -> None:
        """Write what a cluster's DNS would answer; in place, since pods have the file itself mounted."""
        lines = ["127.0.0.1 localhost"]
        for pod in pods:
            known = self.pods.get(pod["metadata"]["name"])
            if known is not None and pod["spec"].get("subdomain"):
                lines.append(f"{known.address} {pod['spec']['subdomain']}")
        self._hosts.write_text("\n".join(lines) + "\n")


def _plain(value: str | bytes) -> bytes:
    return base64.b64decode(value)


def _script(pod: dict[str, Any], mounts: dict[str, Path], hosts: Path, environment: dict[str, str]) -> str:
    user = str(pod["spec"]["securityContext"]["runAsUser"])
    python = Path(os.path.realpath(sys.executable)).parents[1]  # an interpreter below root's home is not for others
    lines = ["set -e", "mount --make-rprivate /", f"hostname {shlex.quote(pod['metadata']['name'])}"]
    if python.is_relative_to("/root"):
        kept = hosts.parent / "python"
        kept.mkdir(exist_ok=True)
        lines += [f"mount --bind {python} {kept}", "mount -t tmpfs -o mode=755 none /root"]
        lines += [f"mkdir -p {python}", f"mount --bind {kept} {python}"]
    for folder in ("/tmp", "/run"):
        lines.append(f"mount -t tmpfs -o mode=1777 none {folder}")
    for path in sorted(mounts):
        place = shlex.quote(path)
        lines += [f"mkdir -p {place}", f"mount --bind {shlex.quote(str(mounts[path]))} {place}"]
    lines += [f"mount --bind {hosts} /etc/hosts", "cd /"]
    given = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", "-i", *given, *pod["spec"]["containers"][0]["command"]]
    as_user = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    lines.append(f"exec {shlex.join([*as_user, *command])}")
    return "\n".join(lines) + "\n"


def _end(pod: PodProcess, number: int, first_only: bool = False) -> None:
    """Signal the first process of a pod, or all processes of its network namespace."""
    if first_only:
        with suppress(OSError):
            pod.process.send_signal(number)
        return
    found = subprocess.run(["ip", "netns", "pids", pod.namespace], capture_output=True, text=True).stdout.split()
    for pid in map(int, found):
        with suppress(OSError):
            os.kill(pid, number)


def _serve_logs(kubelet: Kubelet) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            pod = kubelet.pods.get(path.split("/")[3])
            self.send_response(200 if pod else 404)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                if pod is not None:
                    self._send_log(pod, "follow=true" in query)
                self.wfile.write(b"0\r\n\r\n")

        def _send_log(self, pod: PodProcess, follow: bool) -> None:
            with pod.log.open("rb") as file:
                while True:
                    ended = not follow or pod.process.poll() is not None
                    while data := file.read(1 << 16):
                        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                        self.wfile.flush()
                    if ended:
                        return
                    time.sleep(0.1)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    key, certificate = kubelet.folder / "key.pem", kubelet.folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@dataclass
class ControlPlane:
    """The API server of the tests, as its administrator sees it."""

    folder: Path
    core: Any
    batch: Any
    kubelet: Kubelet
    rbac: Any = field(default=None)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def left(self, namespace: str = "default") -> list[str]:
        """Every object of any job that is there."""
        lists = [
            ("Job", self.batch.list_namespaced_job),
            ("Pod", self.core.list_namespaced_pod),
            ("Service", self.core.list_namespaced_service),
            ("Secret", self.core.list_namespaced_secret),
            ("ConfigMap", self.core.list_namespaced_config_map),
        ]
        found = []
        for kind, ask in lists:
            for one in ask(namespace, label_selector="mslaunch-run").items:
                found.append(f"{kind} {one.metadata.name}")
        return found

    def pods(self, part: str) -> list[str]:
        found = self.core.list_namespaced_pod("default", label_selector=f"mslaunch-part={part}").items
        return [pod.metadata.name for pod in found]


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Start etcd, API server, controllers and scheduler, and the stand-in kubelet; skip where they are missing."""
    if not (HOME / "bin" / "kube-scheduler").exists():
        pytest.skip(MISSING)
    with nodes(PODS) as network, tempfile.TemporaryDirectory(prefix="mslaunch-kubernetes-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        plane = folder / "plane"
        start = [str(ROOT / "tools" / "kubernetes" / "start.sh"), str(plane), str(_free_ports())]
        done = subprocess.run(start, capture_output=True, text=True)
        try:
            assert done.returncode == 0, done.stderr
            from kubernetes import client, config

            api = config.new_client_from_config(str(plane / "kubeconfig"))
            core = client.CoreV1Api(api)
            kubelet = Kubelet(core, _made(folder / "pods"), network.names, ("node-a", "node-b"))
            try:
                rbac = client.RbacAuthorizationV1Api(api)
                yield ControlPlane(plane, core, client.BatchV1Api(api), kubelet, rbac)
            finally:
                kubelet.close()
        finally:
            for pid in (plane / "pids").read_text().split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(plane, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _free_ports() -> int:
    return 26000 + os.getpid() % 700 * 5
