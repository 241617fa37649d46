"""A job as it is submitted: the launcher's command, its objects, and the code that travels with them."""

from __future__ import annotations

import base64
import io
import secrets as random
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan.model import File, Plan
from mslaunch.plan.spec import JobSpec, agree_on_workers
from mslaunch.settings.environment import RANKS_ONLY
from mslaunch.shared import layout
from mslaunch.text import counted
from mslaunch.transports.base import Command
from mslaunch.transports.command_line import command_words, exported, program_words
from mslaunch.transports.kubernetes import manifests
from mslaunch.transports.kubernetes.manifests import (
    CODE,
    CODE_DIR,
    CODE_KEY,
    PORT,
    SECRET_DIR,
    SECRET_KEY,
    Objects,
    labels,
)

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


def describe_pods(spec: JobSpec) -> str:
    """Say which image the pods run, and where."""
    own = spec.launch.kubernetes
    image, namespace = spec.launch.image or own.image, spec.launch.namespace or own.namespace
    return f"pods run image {image} in {f'namespace {namespace}' if namespace else 'the namespace of the kubeconfig'}"


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
    files = [File(OBJECTS, manifests.render(make_objects(spec, plan, command)))]
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
