"""A stand-in for the kubelets of two nodes: it runs a pod's command as a process of this machine.

It registers nodes, starts pods with their ConfigMaps, Secrets and claims, has a hosts file for headless Services,
reports status and serves logs. There are no images, no limits and no probes.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.beds.pod_bed import PodProcess, expanded, now, pod_script, serve_logs, start_process

NO_IMAGE = "registry.invalid/missing:1"
DEVICE = "huawei.com/Ascend910"
REPORT_EVERY = 2.0


class Kubelet:
    """The stand-in for the kubelets of some nodes."""

    def __init__(self, core: Any, folder: Path, namespaces: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        self.core = core
        self.folder = folder
        self.nodes = nodes
        self.pods: dict[str, PodProcess] = {}
        self._free = [(name, f"10.213.9.{number + 1}") for number, name in enumerate(namespaces)]
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._stop = threading.Event()
        self._server = serve_logs(folder, self.pods.get)
        self._report_at = 0.0
        for name in nodes:
            self.core.create_node({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._server.shutdown()
        for pod in self.pods.values():
            pod.signal_all(signal.SIGKILL)

    def end(self, name: str, reason: str) -> None:
        """End a pod as a kubelet does for this reason: OOMKilled, Evicted."""
        self.pods[name].reason = reason
        self.pods[name].signal_all(signal.SIGKILL)

    def running(self) -> list[str]:
        return [name for name, pod in self.pods.items() if pod.process.poll() is None]

    def claim(self, name: str) -> Path:
        """The folder behind a PersistentVolumeClaim."""
        folder = self.folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def _report_node(self, name: str) -> None:
        amount = {"cpu": "8", "memory": "64Gi", "pods": "20", DEVICE: "8"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}
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
        if time.monotonic() > self._report_at:
            for name in self.nodes:
                self._report_node(name)
            self._report_at = time.monotonic() + REPORT_EVERY
        answer = self.core.list_pod_for_all_namespaces(_preload_content=False, _request_timeout=5)
        pods = json.loads(answer.data)["items"]
        self._write_hosts(pods)
        for pod in pods:
            if pod["spec"].get("nodeName") in self.nodes:
                self._care_for(pod)
        present = {pod["metadata"]["name"] for pod in pods}
        for name in [name for name in self.pods if name not in present]:
            gone = self.pods.pop(name)
            gone.signal_all(signal.SIGKILL)
            self._free.append((gone.namespace, gone.address))

    def _care_for(self, pod: dict[str, Any]) -> None:
        known = self.pods.get(pod["metadata"]["name"])
        is_deleted = pod["metadata"].get("deletionTimestamp")
        if known is None:
            if is_deleted:
                self._remove(pod)
            elif pod["spec"]["containers"][0]["image"] == NO_IMAGE:
                waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{NO_IMAGE}"'}
                self._report(pod, "Pending", {"waiting": waiting})
            elif self._free and pod["status"].get("phase") == "Pending":
                self._start(pod)
            return
        code = known.process.poll()
        if is_deleted and code is None:
            self._ask_to_end(pod, known)
        elif code is not None and not known.is_reported:
            self._report_end(pod, known, code)
            known.is_reported = True
        if is_deleted and code is not None:
            self._remove(pod)

    def _ask_to_end(self, pod: dict[str, Any], known: PodProcess) -> None:
        if known.asked_to_end is None:
            known.asked_to_end = time.monotonic()
            known.signal_first(signal.SIGTERM)
        elif time.monotonic() - known.asked_to_end > (pod["metadata"].get("deletionGracePeriodSeconds") or 30):
            known.signal_all(signal.SIGKILL)

    def _remove(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        self.core.delete_namespaced_pod(meta["name"], meta["namespace"], grace_period_seconds=0)

    def _report(self, pod: dict[str, Any], phase: str, state: dict[str, Any], **more: Any) -> None:
        container = pod["spec"]["containers"][0]
        is_ready = phase == "Running"
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        status |= {"ready": is_ready, "state": state}
        ready = {"type": "Ready", "status": str(is_ready), "reason": None if is_ready else "ContainersNotReady"}
        body = {"status": {"phase": phase, "conditions": [ready], "containerStatuses": [status], **more}}
        self.core.patch_namespaced_pod_status(pod["metadata"]["name"], pod["metadata"]["namespace"], body)

    def _report_end(self, pod: dict[str, Any], known: PodProcess, code: int) -> None:
        code = code if code >= 0 else 128 - code
        terminated = {"exitCode": code, "startedAt": known.started, "finishedAt": now()}
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
        script.write_text(pod_script(pod, mounts, self._hosts, self._environment(pod)))
        process = start_process(namespace, script, own / "log")
        self.pods[name] = PodProcess(namespace, address, pod["spec"]["nodeName"], process, own / "log", now())
        running = {"running": {"startedAt": now()}}
        self._report(pod, "Running", running, podIP=address, podIPs=[{"ip": address}], startTime=now())

    def _mounts(self, pod: dict[str, Any]) -> dict[str, Path] | None:
        """Where each volume lies on this machine, by its path in the pod; None while an object is missing."""
        own = self.folder / pod["metadata"]["name"]
        sources = {}
        for volume in pod["spec"].get("volumes") or ():
            if "persistentVolumeClaim" in volume:
                sources[volume["name"]] = self.claim(volume["persistentVolumeClaim"]["claimName"])
                continue
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
                return plain | _decoded(found.binary_data)
            if "secret" in volume:
                return _decoded(self.core.read_namespaced_secret(volume["secret"]["secretName"], namespace).data)
        except ApiException:
            return None
        return {}

    def _environment(self, pod: dict[str, Any]) -> dict[str, str]:
        from kubernetes.client import ApiException

        container = pod["spec"]["containers"][0]
        variables = {one["name"]: expanded(one.get("value", ""), {}) for one in container.get("env") or ()}
        for source in container.get("envFrom") or ():
            with suppress(ApiException):
                secret = source["secretRef"]["name"]
                found = self.core.read_namespaced_secret(secret, pod["metadata"]["namespace"])
                variables |= {key: value.decode() for key, value in _decoded(found.data).items()}
        return {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin", **variables}

    def _write_hosts(self, pods: list[dict[str, Any]]) -> None:
        """Write what a cluster's DNS would answer; in place, since pods have the file itself mounted."""
        lines = ["127.0.0.1 localhost"]
        for pod in pods:
            known = self.pods.get(pod["metadata"]["name"])
            if known is not None and pod["spec"].get("subdomain"):
                lines.append(f"{known.address} {pod['spec']['subdomain']}")
        text = "\n".join(lines) + "\n"
        if text != self._hosts.read_text():
            self._hosts.write_text(text)


def _decoded(values: dict[str, str] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (values or {}).items()}
