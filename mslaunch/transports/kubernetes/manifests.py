"""The objects of a job on Kubernetes, as text: rendered from a template in which every value is written as JSON."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.plan.render import fill
from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.text import counted

PORT = 29400
RUN_LABEL = "mslaunch-run"
PART_LABEL = "mslaunch-part"
CONTEXT = "mslaunch/context"
"""Annotation of the launcher's Job: the context of the kubeconfig that it was submitted with."""
CODE = "mslaunch/code"
"""Annotation of the launcher's Job: where pods have the project's code, which is not sent then."""
SUBMISSION = "mslaunch/submission"
"""Annotation of the launcher's Job: a random text, by which its submitter knows it again."""
SECRET_KEY = "join.secret"
SECRET_DIR = "/run/mslaunch/secret"
CODE_DIR = "/run/mslaunch/code"
CODE_KEY = "code.tar.gz"
RESOURCES = {"Ascend": "huawei.com/Ascend910", "GPU": "nvidia.com/gpu", "CPU": None}
"""The resource that stands for the devices of each target; a CPU rank needs none."""


@dataclass(frozen=True, slots=True)
class Objects:
    """What the objects of one job are made from."""

    run_id: str
    run_dir: str
    project: str
    """The folder of the project; pods have it, and the folder of runs, at the same path as the submitter."""
    nodes: int
    ranks_per_node: int
    target: str
    restarts: int
    grace: float
    image: str
    join_timeout: float
    volcano: bool
    namespace: str | None
    command: tuple[str, ...]
    """The launcher's command line."""
    settings: KubernetesSettings
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the launcher's container."""

    @property
    def name(self) -> str:
        return object_name(self.run_id)


def object_name(run_id: str) -> str:
    """The name of a run's objects: its id as a DNS label, with a part of its checksum where that differs."""
    plain = re.sub(r"[^a-z0-9-]+", "-", run_id.lower()).strip("-")[:36].strip("-")
    if plain == run_id and plain[0].isalpha():
        return plain
    return f"msl-{plain or 'run'}-{hashlib.sha256(run_id.encode()).hexdigest()[:6]}"


def labels(name: str, part: str) -> dict[str, str]:
    return {RUN_LABEL: name, PART_LABEL: part}


def render(objects: Objects) -> str:
    """Render the Service and the jobs of launcher and workers, with what `patch` adds."""
    filters = {"comment": _comment, "indented": _indented}
    text = fill("kubernetes.yaml.j2", _values(objects), _quote, filters)
    return _patched(text, objects) if objects.settings.patch else text


class _Yaml(str):
    """Text that is YAML already."""

    __slots__ = ()


def _quote(value: object) -> object:
    """Write a value as JSON; text that a macro has rendered is written as it is."""
    if isinstance(value, _Yaml):
        return value
    # A pair of \\u escapes is one character in JSON, and two in YAML.
    return re.sub(r"[^\x20-\x7e]", lambda char: f"\\U{ord(char[0]):08x}", json.dumps(value, ensure_ascii=False))


def _comment(value: object) -> _Yaml:
    return _Yaml("".join(char if char.isprintable() else " " for char in str(value)))


def _indented(text: str, spaces: int) -> _Yaml:
    return _Yaml(text.rstrip("\n").replace("\n", "\n" + " " * spaces))


def _values(objects: Objects) -> dict[str, Any]:
    settings = objects.settings
    home = {"name": "HOME", "value": "/tmp"}
    user = {"name": "USER", "value": "mslaunch"}
    given = objects.variables
    device = settings.device_resource or RESOURCES.get(objects.target)
    worker = {**settings.resources, **({device: str(objects.ranks_per_node)} if device else {})}
    annotations = {CONTEXT: settings.context, CODE: settings.code}
    return {
        "k": settings,
        "annotations": {name: value for name, value in annotations.items() if value},
        "name": objects.name,
        "count": f"{counted(objects.nodes * objects.ranks_per_node, 'rank')} in {counted(objects.nodes, 'worker pod')}",
        "labels": lambda part: labels(objects.name, part),
        "image": objects.image,
        "volcano": objects.volcano,
        "namespace": objects.namespace,
        "nodes": objects.nodes,
        "restarts": objects.restarts,
        "grace": int(objects.grace) + 20,
        "port": PORT,
        "pull_secrets": [{"name": name} for name in settings.image_pull_secrets],
        "launcher_command": [_literal(word) for word in _launcher_command(objects)],
        "worker_command": [_literal(word) for word in _worker_command(objects)],
        "launcher_resources": _limits(settings.launcher_resources),
        "worker_resources": _limits(worker),
        "launcher_env": [home, user, *({"name": name, "value": _literal(value)} for name, value in given.items())],
        "worker_env": [home, user],
        "mounts": {part: _mounts(objects, part) for part in ("launcher", "worker")},
        "volumes": {part: _volumes(objects, part) for part in ("launcher", "worker")},
    }


def _literal(text: str) -> str:
    """Text of a command or a variable: Kubernetes replaces $(NAME) there, and makes $$ one $."""
    return text.replace("$", "$$")


def _limits(resources: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {"requests": dict(resources), "limits": dict(resources)} if resources else {}


def _launcher_command(objects: Objects) -> list[str]:
    python = objects.settings.python
    words = [python, "-m", "mslaunch.transports.kubernetes.pod", objects.run_dir, objects.project]
    return [*words, objects.settings.code or f"{CODE_DIR}/{CODE_KEY}", python, "-m", "mslaunch", *objects.command]


def _worker_command(objects: Objects) -> list[str]:
    words = [objects.settings.python, "-m", "mslaunch", "agent", "--join", f"{objects.name}:{PORT}"]
    runs_dir = objects.run_dir.rpartition("/")[0]
    words += ["--secret-file", f"{SECRET_DIR}/{SECRET_KEY}", "--workers-per-node", str(objects.ranks_per_node)]
    return [*words, "--join-timeout", f"{objects.join_timeout:g}", "--runs-dir", runs_dir]


def _mounts(objects: Objects, part: str) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "project", "mountPath": objects.project}] if part == "launcher" else []
    mounts.append({"name": "runs", "mountPath": objects.run_dir.rpartition("/")[0]})
    mounts.append({"name": "secret", "mountPath": SECRET_DIR, "readOnly": True})
    if part == "launcher":
        mounts.append({"name": "code", "mountPath": CODE_DIR, "readOnly": True})
    elif objects.settings.shared_memory:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, volume in enumerate(objects.settings.volumes):
        mounts.append({"name": f"volume-{number}", "mountPath": volume.path, "readOnly": volume.read_only})
    return mounts


def _volumes(objects: Objects, part: str) -> list[dict[str, Any]]:
    settings = objects.settings
    runs = {"persistentVolumeClaim": {"claimName": settings.runs_claim}} if settings.runs_claim else {"emptyDir": {}}
    volumes: list[dict[str, Any]] = [{"name": "project", "emptyDir": {}}] if part == "launcher" else []
    volumes.append({"name": "runs", **runs})
    # Readable for the pod's group: fsGroup is the group of the pod's user.
    volumes.append({"name": "secret", "secret": {"secretName": objects.name, "defaultMode": 0o440}})
    if part == "launcher":
        volumes.append({"name": "code", "configMap": {"name": objects.name}})
    elif settings.shared_memory:
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}})
    for number, volume in enumerate(settings.volumes):
        claim = {"claimName": volume.claim, "readOnly": volume.read_only}
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": claim})
    return volumes


def _patched(text: str, objects: Objects) -> str:
    import yaml

    found = list(yaml.safe_load_all(text))
    known = {one["metadata"]["labels"][PART_LABEL] for one in found}
    for part in objects.settings.patch:
        if part not in known:
            there = ", ".join(sorted(known))
            raise RequestError(f"launch.kubernetes.patch.{part}: there is no such object. There are: {there}.")
    patch = objects.settings.patch
    return to_yaml([merge(one, patch.get(one["metadata"]["labels"][PART_LABEL], {})) for one in found])


def to_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    import yaml

    return str(yaml.safe_dump_all(objects, sort_keys=False, width=200))


def merge(value: Any, patch: Any) -> Any:
    """Merge mappings key by key, null removes a key; items of lists that have names are merged by name."""
    if isinstance(value, dict) and isinstance(patch, dict):
        merged = {**value, **{key: merge(value.get(key), part) for key, part in patch.items()}}
        return {key: part for key, part in merged.items() if part is not None}
    if _are_named(value) and _are_named(patch):
        changes = {item["name"]: item for item in patch}
        kept = [merge(item, changes.pop(item["name"], {})) for item in value]
        return [*kept, *changes.values()]
    return patch


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)
