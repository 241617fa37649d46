"""The objects of a job on Kubernetes, as text: rendered from a template in which every value is written as JSON."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import secrets as random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan.model import File, Plan
from mslaunch.plan.render import fill
from mslaunch.plan.spec import JobSpec, agree_on_workers
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.settings.kubernetes_settings import KubernetesSettings
from mslaunch.shared import layout
from mslaunch.text import counted
from mslaunch.transports.base import Command
from mslaunch.transports.command_line import command_words, exported, program_words

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
    device = settings.device_resource or RESOURCES.get(objects.target)
    worker = {**settings.resources, **({device: str(objects.ranks_per_node)} if device else {})}
    annotations = {CONTEXT: settings.context, CODE: settings.code}
    mounts, volumes = {}, {}
    for part in ("launcher", "worker"):
        storage = _storage(objects, part)
        mounts[part] = [{"name": name, **mount} for name, mount, _ in storage]
        volumes[part] = [{"name": name, **source} for name, _, source in storage]
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
        "launcher_env": [
            home,
            user,
            *({"name": name, "value": _literal(value)} for name, value in objects.variables.items()),
        ],
        "worker_env": [home, user],
        "mounts": mounts,
        "volumes": volumes,
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


def _storage(objects: Objects, part: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The volumes of a pod: the name of each, where it is mounted, and what it is."""
    settings = objects.settings
    runs = {"persistentVolumeClaim": {"claimName": settings.runs_claim}} if settings.runs_claim else {"emptyDir": {}}
    # Readable for the pod's group: fsGroup is the group of the pod's user.
    secret = {"secret": {"secretName": objects.name, "defaultMode": 0o440}}
    rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    if part == "launcher":
        rows.append(("project", {"mountPath": objects.project}, {"emptyDir": {}}))
    rows.append(("runs", {"mountPath": objects.run_dir.rpartition("/")[0]}, runs))
    rows.append(("secret", {"mountPath": SECRET_DIR, "readOnly": True}, secret))
    if part == "launcher":
        rows.append(("code", {"mountPath": CODE_DIR, "readOnly": True}, {"configMap": {"name": objects.name}}))
    elif settings.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": settings.shared_memory}
        rows.append(("shm", {"mountPath": "/dev/shm"}, {"emptyDir": memory}))
    for number, volume in enumerate(settings.volumes):
        mount = {"mountPath": volume.path, "readOnly": volume.read_only}
        claim = {"claimName": volume.claim, "readOnly": volume.read_only}
        rows.append((f"volume-{number}", mount, {"persistentVolumeClaim": claim}))
    return rows


def _patched(text: str, objects: Objects) -> str:
    import yaml

    bodies = {body["metadata"]["labels"][PART_LABEL]: body for body in yaml.safe_load_all(text)}
    for part, patch in objects.settings.patch.items():
        if part not in bodies:
            there = ", ".join(sorted(bodies))
            raise RequestError(f"launch.kubernetes.patch.{part}: there is no such object. There are: {there}.")
        bodies[part] = merge(bodies[part], patch)
    return to_yaml(list(bodies.values()))


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
        merged_items = [merge(item, changes.pop(item["name"], {})) for item in value]
        return [*merged_items, *changes.values()]
    return patch


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


OBJECTS = layout.script("kubernetes.yaml")
JOB_CONFIG = layout.script("job.yaml")
LARGEST_CODE = 900 << 10  # an object of Kubernetes has 1 MiB at most, in base64

WEEK = 7 * 86400.0
"""How long launcher and workers wait for each other by default: a pod may be in a queue for days."""

_SUBMITTING = ("transport", "nodes", "image", "namespace", "volcano", "kubernetes", "join_timeout")
_PLACED = ("nnodes", "master", "secret_file", "launcher_only")


def planned_hosts(spec: JobSpec) -> tuple[Host, ...]:
    """Stand-ins for the worker pods, each with the same number of ranks."""
    nodes = spec.launch.nodes or 1
    ranks = agree_on_workers(spec, tuple(range(nodes)))
    if ranks % nodes:
        raise RequestError(
            f"{counted(ranks, 'rank')} ({spec.sources['workers']}) cannot be spread evenly over {nodes} pods "
            f"({spec.sources['nodes']}). Ask for a multiple of {nodes}."
        )
    python = spec.launch.python or spec.launch.kubernetes.python
    each = tuple(range(ranks // nodes))
    return tuple(Host(f"worker{i}", f"worker{i}", each, python=python) for i in range(nodes))


def make_objects(spec: JobSpec, plan: Plan, command: Command) -> Objects:
    launch = spec.launch
    image = launch.image or launch.kubernetes.image
    if not image:
        raise RequestError(f"{spec.sources['transport']}: which image? Give --image, or launch.kubernetes.image.")
    project = plan.job_dir
    if ":" in project or ":" in plan.run_dir:
        raise RequestError(f"{project}: a path in a pod has no colon. Rename the folder.")
    if Path(project) in (Path("/"), Path("/tmp"), *Path(CODE_DIR).parents):
        raise RequestError(f"{project}: pods cannot have the project there. Put it into a folder of its own.")
    nodes = len(plan.hosts)
    timeout = WEEK if spec.sources["join_timeout"] == "default" else launch.join_timeout
    return Objects(
        run_id=plan.run_id,
        run_dir=plan.run_dir,
        project=project,
        nodes=nodes,
        ranks_per_node=len(plan.hosts[0].devices),
        target=plan.device_target,
        restarts=launch.max_restarts,
        grace=launch.grace,
        image=image,
        join_timeout=timeout,
        volcano=launch.kubernetes.volcano if launch.volcano is None else launch.volcano,
        namespace=launch.namespace or launch.kubernetes.namespace,
        command=tuple(_command_words(command, plan, nodes, timeout)),
        settings=launch.kubernetes,
        variables={f"{RANKS_ONLY}{name}": value for name, value in exported(command).items()},
    )


def _command_words(command: Command, plan: Plan, nodes: int, timeout: float) -> list[str]:
    """The launcher's command line in its pod: what was asked for, for nodes that join."""
    words = command_words(command, f"{CODE_DIR}/{Path(JOB_CONFIG).name}", (*_SUBMITTING, *_PLACED))
    words += ["--transport=join", f"--nnodes={nodes}", "--launcher-only"]
    words += [f"--join-timeout={timeout:g}", f"--master=:{PORT}", f"--secret-file={SECRET_DIR}/{SECRET_KEY}"]
    words += [f"--runs-dir={plan.run_dir.rpartition('/')[0]}", f"--run-id={plan.run_id}"]
    return [*words, *program_words(command)]


def job_files(spec: JobSpec, plan: Plan, command: Command) -> list[File]:
    """The objects without secrets and code, and the config."""
    files = [File(OBJECTS, render(make_objects(spec, plan, command)))]
    return files if command.config is None else [*files, File(JOB_CONFIG, command.config)]


def pack_code(code: Path) -> bytes:
    """The files of the project, without what is linked: data is no code."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(code.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, str(path.relative_to(code)), recursive=False)
    if packed.tell() > LARGEST_CODE:
        raise RequestError(
            f"{code}: the code has {packed.tell() >> 10} KB packed, and Kubernetes takes {LARGEST_CODE >> 10} KB. "
            "Put the project into the image or on a volume and name its folder there (launch.kubernetes.code)."
        )
    return packed.getvalue()


def further_objects(run_dir: Path, root: Mapping[str, Any], env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The Secret with the nodes' secret, made now, that with the variables of the ranks, and config and code."""
    name, annotations = root["metadata"]["name"], root["metadata"].get("annotations", {})
    config = run_dir / JOB_CONFIG
    code: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels(name, "code")},
    }
    if CODE not in annotations:
        code["binaryData"] = {CODE_KEY: base64.b64encode(pack_code(run_dir / layout.CODE)).decode()}
    if config.exists():
        code["data"] = {config.name: config.read_text()}
    made = [code, _secret(name, "secret", {SECRET_KEY: random.token_hex(32)})]
    if env:
        variables = {f"{RANKS_ONLY}{key}": value for key, value in env.items()}
        made.append(_secret(f"{name}-env", "env", variables))
    return made


def _secret(name: str, part: str, values: Mapping[str, str]) -> dict[str, Any]:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels(name.removesuffix("-env"), part)},
        "type": "Opaque",
        "data": data,
    }
