"""What `launch.kubernetes` may hold: the pods of a job, and where they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from mslaunch.errors import did_you_mean
from mslaunch.settings.setting import Before, Limits, Matching, setting
from mslaunch.settings.value_types import as_list

_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_PARTS = ("launcher", "worker", "service")


def _path(value: str) -> str:
    if not value.startswith("/") or "\0" in value or len(value) > 4095:
        raise ValueError("write an absolute path")
    if ":" in value:
        raise ValueError("a path in a pod has no colon")
    return value


def _resources(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if name not in _RESOURCES and not name.startswith("hugepages-") and "/" not in name:
            near = did_you_mean(name, _RESOURCES).rstrip("?")
            raise ValueError(f"there is no resource {name!r}{near or '; write cpu, memory, or a name with /'}")
    return value


def _parts(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name in value:
        if name not in _PARTS:
            near = did_you_mean(name, _PARTS).rstrip("?")
            raise ValueError(f"there is no object {name!r}{near or '; there are: ' + ', '.join(_PARTS)}")
    return value


Name = Annotated[
    str, Matching(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "write lower-case letters, digits and dashes only")
]
Path = Annotated[str, _path]
Quantity = Annotated[
    str, Matching(r"[0-9]{1,18}(\.[0-9]{1,9})?([EPTGMK]i|[EPTGMkm])?", "write an amount such as 16Gi, 8 or 500m")
]
Resources = Annotated[dict[str, Quantity], _resources]


@dataclass(frozen=True)
class VolumeEntry:
    """One of `launch.kubernetes.volumes`."""

    claim: Name = setting(..., "The PersistentVolumeClaim.")
    path: Path = setting(..., "Where the pods have it.")
    read_only: bool = setting(False, "Whether the pods may only read it.")


@dataclass(frozen=True)
class KubernetesSettings:
    """Everything that stands under `launch.kubernetes`."""

    image: str | None = setting(None, "Image of the pods; it has mslaunch and MindSpore.")
    namespace: Name | None = setting(None, "Namespace; by default that of the kubeconfig's context.")
    context: str | None = setting(None, "Context of the kubeconfig; by default its current one.")
    volcano: bool = setting(False, "A Job of Volcano, whose pods are scheduled together.")
    queue: Name | None = setting(None, "Queue of Volcano.")
    python: str = setting("python3", "The Python of the image that has mslaunch.")
    code: Path | None = setting(
        None, "Folder of the project in the image or on a volume; by default the code is sent from here."
    )
    device_resource: str | None = setting(None, "Resource of the devices; by default that of the job's device_target.")
    resources: Resources = setting(dict, "Further resources of each worker pod: {cpu: 8, memory: 64Gi}.")
    launcher_resources: Resources = setting(dict, "Resources of the launcher's pod, which needs no device.")
    node_selector: dict[str, str] = setting(dict, "Labels of nodes for worker pods.")
    tolerations: tuple[dict[str, Any], ...] = setting((), "Tolerations of all pods, as Kubernetes has them.")
    volumes: tuple[VolumeEntry, ...] = setting((), "Claims that all pods mount, for data.")
    runs_claim: Name | None = setting(None, "Claim for the folder of runs; by default it ends with the pods.")
    shared_memory: Quantity | None = setting(None, "Size of /dev/shm in worker pods, for example 16Gi.")
    priority_class: Name | None = setting(None, "Priority class of all pods.")
    image_pull_secrets: Annotated[tuple[Name, ...], Before(as_list)] = setting((), "Secrets for the image's registry.")
    service_account: Name | None = setting(None, "Service account of the pods; they use no right of it.")
    user: Annotated[int, Limits(least=1, most=2**31 - 1)] = setting(1000, "User id of the pods' processes; not root.")
    keep_seconds: Annotated[int, Limits(least=0, most=2**31 - 1)] = setting(
        3600, "Seconds after which the objects of a finished job are deleted."
    )
    patch: Annotated[dict[str, dict[str, Any]], _parts] = setting(
        dict, "Merged into the objects, by their part: launcher, worker, service."
    )
