"""What `launch.kubernetes` may hold: the pods of a job, and where they run."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mslaunch.errors import did_you_mean

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_PARTS = ("launcher", "worker", "service")
_QUANTITY = re.compile(r"[0-9]{1,18}(\.[0-9]{1,9})?([EPTGMK]i|[EPTGMkm])?")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("write lower-case letters, digits and dashes only")
    return value


def _quantity(value: str) -> str:
    if not _QUANTITY.fullmatch(value):
        raise ValueError("write an amount such as 16Gi, 8 or 500m")
    return value


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


Name = Annotated[str, AfterValidator(_name)]
Path = Annotated[str, AfterValidator(_path)]
Quantity = Annotated[str, AfterValidator(_quantity)]
Resources = Annotated[dict[str, Quantity], AfterValidator(_resources)]


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class VolumeEntry(BaseModel):
    """One of `launch.kubernetes.volumes`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: Name = Field(description="The PersistentVolumeClaim.")
    path: Path = Field(description="Where the pods have it.")
    read_only: bool = Field(False, description="Whether the pods may only read it.")


class KubernetesSettings(BaseModel):
    """Everything that stands under `launch.kubernetes`."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    image: str | None = Field(None, description="Image of the pods; it has mslaunch and MindSpore.")
    namespace: Name | None = Field(None, description="Namespace; by default that of the kubeconfig's context.")
    context: str | None = Field(None, description="Context of the kubeconfig; by default its current one.")
    volcano: bool = Field(False, description="A Job of Volcano, whose pods are scheduled together.")
    queue: Name | None = Field(None, description="Queue of Volcano.")
    python: str = Field("python3", description="The Python of the image that has mslaunch.")
    code: Path | None = Field(
        None, description="Folder of the project in the image or on a volume; by default the code is sent from here."
    )
    device_resource: str | None = Field(
        None, description="Resource of the devices; by default that of the job's device_target."
    )
    resources: Resources = Field(
        default_factory=dict, description="Further resources of each worker pod: {cpu: 8, memory: 64Gi}."
    )
    launcher_resources: Resources = Field(
        default_factory=dict, description="Resources of the launcher's pod, which needs no device."
    )
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels of nodes for worker pods.")
    tolerations: tuple[dict[str, Any], ...] = Field((), description="Tolerations of all pods, as Kubernetes has them.")
    volumes: tuple[VolumeEntry, ...] = Field((), description="Claims that all pods mount, for data.")
    runs_claim: Name | None = Field(None, description="Claim for the folder of runs; by default it ends with the pods.")
    shared_memory: Quantity | None = Field(None, description="Size of /dev/shm in worker pods, for example 16Gi.")
    priority_class: Name | None = Field(None, description="Priority class of all pods.")
    image_pull_secrets: Annotated[tuple[Name, ...], BeforeValidator(_names)] = Field(
        (), description="Secrets for the image's registry."
    )
    service_account: Name | None = Field(None, description="Service account of the pods; they use no right of it.")
    user: int = Field(1000, ge=1, le=2**31 - 1, description="User id of the pods' processes; not root.")
    keep_seconds: int = Field(
        3600, ge=0, le=2**31 - 1, description="Seconds after which the objects of a finished job are deleted."
    )
    patch: Annotated[dict[str, dict[str, Any]], AfterValidator(_parts)] = Field(
        default_factory=dict, description="Merged into the objects, by their part: launcher, worker, service."
    )
