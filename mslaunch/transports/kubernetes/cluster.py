"""The API server: the few requests that a job needs, with retries, through the official client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.transports.kubernetes.manifests import PART_LABEL, RUN_LABEL

SECONDS = 20
PATIENCE = 60.0
_PAUSE = 1.0
_AGAIN = (429, 500, 502, 503, 504)
_KINDS = {
    "Service": "service",
    "Secret": "secret",
    "ConfigMap": "config_map",
}
VOLCANO = ("batch.volcano.sh", "v1alpha1")


@dataclass(frozen=True, slots=True)
class JobName:
    """Where a job is: written as NAMESPACE/NAME, NAMESPACE/volcano/NAME, and @CONTEXT where one was named."""

    namespace: str
    name: str
    volcano: bool = False
    context: str | None = None

    def __str__(self) -> str:
        kind = "volcano/" if self.volcano else ""
        return f"{self.namespace}/{kind}{self.name}" + (f"@{self.context}" if self.context else "")


def parse_job(text: str) -> JobName:
    place, _, context = text.partition("@")
    namespace, *kind, name = place.split("/")
    return JobName(namespace, name, bool(kind), context or None)


class NotFound(Exception):
    """There is no such object."""


class Unreachable(NotReadyError):
    """The API server does not answer, or refuses."""


@lru_cache(maxsize=8)
def connect(context: str | None) -> Any:
    """Load the kubeconfig, or the configuration of the pod that this process runs in."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise RequestError(
            "--transport kubernetes: the Python package kubernetes is missing. Install mslaunch[kubernetes]."
        ) from None
    try:
        return config.new_client_from_config(context=context)
    except config.ConfigException as error:
        if context is None:
            with suppress(config.ConfigException):
                config.load_incluster_config()
                return client.ApiClient()
        raise RequestError(
            f"the kubeconfig cannot be used: {error}. Set KUBECONFIG, or see `kubectl config`."
        ) from None


def default_namespace(context: str | None) -> str:
    """The namespace of the context, else that of the pod that this process runs in, else default."""
    from kubernetes import config

    with suppress(config.ConfigException):
        contexts, active = config.list_kube_config_contexts()
        chosen = next((one for one in contexts if one["name"] == context), active)
        return str(chosen["context"].get("namespace") or "default")
    with suppress(OSError), open("/var/run/secrets/kubernetes.io/serviceaccount/namespace") as file:  # noqa: PTH123
        return file.read().strip()
    return "default"


class Cluster:
    """The requests about the objects of one job."""

    def __init__(self, job: JobName) -> None:
        from kubernetes import client

        api = connect(job.context)
        self.job = job
        self._core = client.CoreV1Api(api)
        self._batch = client.BatchV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    def create(self, body: Mapping[str, Any]) -> Any:
        """Create an object; one that is there already, since an answer was lost, is taken."""
        kind, namespace = body["kind"], self.job.namespace
        if kind == "Job" and body["apiVersion"].startswith(VOLCANO[0]):
            make = lambda: self._custom.create_namespaced_custom_object(  # noqa: E731
                *VOLCANO, namespace, "jobs", dict(body), _preload_content=False, _request_timeout=SECONDS
            )
        else:
            owner = self._batch if kind == "Job" else self._core
            method = getattr(owner, f"create_namespaced_{_KINDS.get(kind, 'job')}")
            make = lambda: method(namespace, dict(body), _preload_content=False, _request_timeout=SECONDS)  # noqa: E731
        return _ask(make, f"create {kind} {body['metadata']['name']}", PATIENCE)

    def root(self, patience: float = 0.0) -> dict[str, Any]:
        """The launcher's Job, which owns all other objects."""
        name, namespace = self.job.name, self.job.namespace
        how = {"_preload_content": False, "_request_timeout": SECONDS}
        if self.job.volcano:
            read = lambda: self._custom.get_namespaced_custom_object(*VOLCANO, namespace, "jobs", name, **how)  # noqa: E731
        else:
            read = lambda: self._batch.read_namespaced_job(name, namespace, **how)  # noqa: E731
        found: dict[str, Any] = _ask(read, f"read Job {name}", patience)
        return found

    def pods(self, patience: float = 0.0) -> list[dict[str, Any]]:
        found = _ask(
            lambda: self._core.list_namespaced_pod(
                self.job.namespace,
                label_selector=f"{RUN_LABEL}={self.job.name}",
                _preload_content=False,
                _request_timeout=SECONDS,
            ),
            "list pods",
            patience,
        )
        return list(found.get("items") or ())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a Job, which say why it makes no pods."""
        found = _ask(
            lambda: self._core.list_namespaced_event(
                self.job.namespace,
                field_selector=f"involvedObject.name={name}",
                _preload_content=False,
                _request_timeout=SECONDS,
            ),
            "list events",
            0.0,
        )
        return list(found.get("items") or ())

    def hold(self) -> None:
        """Let the launcher's Job have no pod any more: its launcher gets SIGTERM, and the workers are there still."""
        if self.job.volcano:
            return
        _ask(
            lambda: self._batch.patch_namespaced_job(
                self.job.name,
                self.job.namespace,
                {"spec": {"parallelism": 0}},
                _preload_content=False,
                _request_timeout=SECONDS,
            ),
            f"stop Job {self.job.name}",
            PATIENCE,
        )

    def delete(self, patience: float = PATIENCE) -> None:
        """Delete the launcher's Job and with it all that it owns."""
        name, namespace = self.job.name, self.job.namespace
        how = {"propagation_policy": "Foreground", "_preload_content": False, "_request_timeout": SECONDS}
        if self.job.volcano:
            remove = lambda: self._custom.delete_namespaced_custom_object(*VOLCANO, namespace, "jobs", name, **how)  # noqa: E731
        else:
            remove = lambda: self._batch.delete_namespaced_job(name, namespace, **how)  # noqa: E731
        with suppress(NotFound):
            _ask(remove, f"delete Job {name}", patience)

    def log(self, pod: str, follow: bool) -> Iterator[bytes]:
        """Yield the lines of a pod's log; a stream that breaks off just ends."""
        import urllib3
        from kubernetes.client import ApiException

        try:
            answer = self._core.read_namespaced_pod_log(
                pod,
                self.job.namespace,
                follow=follow,
                _preload_content=False,
                _request_timeout=(SECONDS, 3600 if follow else SECONDS),
            )
            rest = b""
            for data in answer.stream(1 << 16, decode_content=False):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
        except (ApiException, urllib3.exceptions.HTTPError, OSError):
            return


def part_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get(PART_LABEL, ""))


def _ask(request: Callable[[], Any], what: str, patience: float) -> Any:
    """Make a request, again and again for so many seconds where the server cannot be reached or is busy."""
    import urllib3
    from kubernetes.client import ApiException

    until = time.monotonic() + patience
    while True:
        try:
            return json.loads(request().data)
        except ApiException as error:
            if error.status == 404:
                raise NotFound(what) from None
            if error.status == 409 and what.startswith("create"):
                raise NotReadyError(f"cannot {what}: {_message(error)} Give another --run-id.") from None
            if error.status not in (0, None, *_AGAIN) or time.monotonic() > until:
                raise Unreachable(f"cannot {what}: {_message(error)}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if time.monotonic() > until:
                raise Unreachable(f"cannot {what}: the API server cannot be reached: {error}.") from None
        time.sleep(_PAUSE)


def _message(error: Any) -> str:
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(error.body)["message"]).rstrip(".") + "."
    return f"the API server answers {error.status} {error.reason}."
