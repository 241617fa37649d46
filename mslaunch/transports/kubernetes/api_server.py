"""The API server: the few requests that a job needs, with retries, through the official client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import NotReadyError, RequestError, did_you_mean
from mslaunch.transports.kubernetes.manifests import PART_LABEL, RUN_LABEL, SUBMISSION

_ADVICE = "Set KUBECONFIG, or see `kubectl config view`."


def why_no_answer(error: BaseException) -> str:
    """Say in a clause why a request had no answer that can be read."""
    from urllib3 import exceptions

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror[:1].lower() + cause.strerror[1:]
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, (exceptions.TimeoutError, TimeoutError)):
        return "the request timed out"
    if isinstance(error, exceptions.ProtocolError):
        return "it closed the connection"
    return one_line(error)


def why_unusable(error: Exception, context: str | None) -> str:
    """Say why there is no client of the API server: there is no kubeconfig, no such context, or it is broken."""
    from kubernetes import config
    from kubernetes.config import kube_config

    place = f"the kubeconfig {kube_config.KUBE_CONFIG_DEFAULT_LOCATION}"
    try:
        contexts, _ = config.list_kube_config_contexts()
        names = [str(one["name"]) for one in contexts]
    except config.ConfigException as failed:
        if "No configuration found" in str(failed):
            return f"{place} is not there or is empty, and this is no pod. {_ADVICE}"
        names = []
    except Exception:  # the client reads the file without checking what stands in it
        names = []
    if context is not None and names and context not in names:
        near = did_you_mean(context, names) or f". It has: {', '.join(names)}."
        return f"launch.kubernetes.context: {place} has no context {context!r}{near}"
    return f"{place} cannot be used: {one_line(error)}. {_ADVICE}"


def one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


SECONDS = 20
PATIENCE = 60.0
FIRST_PATIENCE = 5.0
"""How long to wait for an API server's first answer: nothing was created so far, and somebody waits."""
_FIRST_SECONDS = 3
_PAUSE = 1.0
_HOW = {"_preload_content": False, "_request_timeout": SECONDS}
_AGAIN = (429, 500, 502, 503, 504)
_KINDS = {"Service": "service", "Secret": "secret", "ConfigMap": "config_map"}
_CUSTOM_VERBS = {"read": "get"}
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


class Conflict(Exception):
    """There is such an object already."""

    def __init__(self, what: str, is_repeated: bool) -> None:
        super().__init__(what)
        self.is_repeated = is_repeated
        """Whether an earlier request may have created it."""


class NoAnswer(NotReadyError):
    """The API server does not answer."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"cannot {what}: {why}")
        self.why = why


@lru_cache(maxsize=8)
def connect(context: str | None) -> Any:
    """Load the kubeconfig, or the configuration of the pod that this process runs in."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise RequestError(
            "--transport kubernetes: the Python package kubernetes is missing. "
            "Run pip install '.[kubernetes]' in the clone of mslaunch."
        ) from None
    settings = client.Configuration()
    settings.retries = False  # `_ask` repeats requests, and knows how long
    try:
        return config.new_client_from_config(context=context, client_configuration=settings)
    except Exception as error:  # the client reads the file without checking what stands in it
        if context is None and isinstance(error, config.ConfigException):
            with suppress(config.ConfigException):
                config.load_incluster_config(client_configuration=settings)
                return client.ApiClient(settings)
        raise RequestError(why_unusable(error, context)) from None


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


class JobObjects:
    """The requests about the objects of one job."""

    def __init__(self, job: JobName) -> None:
        from kubernetes import client

        api = connect(job.context)
        self.job = job
        self._server = str(api.configuration.host)
        self._core = client.CoreV1Api(api)
        self._batch = client.BatchV1Api(api)
        self._custom = client.CustomObjectsApi(api) if job.volcano else None  # loading it takes a while

    def reach(self) -> None:
        """Wait a little for an answer of the API server, before anything is created."""
        try:
            with suppress(NotFound):
                request = self._about_job("read", _request_timeout=_FIRST_SECONDS)
                self._ask(request, f"read Job {self.job.name}", FIRST_PATIENCE)
        except NoAnswer as error:
            advice = "Nothing was submitted. See `kubectl cluster-info`, or set KUBECONFIG."
            raise NotReadyError(f"{error.why} {advice}") from None

    def create(self, body: Mapping[str, Any]) -> Any:
        """Create an object; one that was created by a request whose answer was lost is taken."""
        kind, name = body["kind"], body["metadata"]["name"]
        if kind != "Job":
            make = getattr(self._core, f"create_namespaced_{_KINDS[kind]}")
            request: Callable[[], Any] = partial(make, self.job.namespace, dict(body), **_HOW)
        else:
            request = self._about_job("create", dict(body))
        try:
            return self._ask(request, f"create {kind} {name}", PATIENCE)
        except Conflict as conflict:
            if kind != "Job":
                if conflict.is_repeated:
                    return body
            elif mark_of(root := self.root(PATIENCE)) and mark_of(root) == mark_of(body):
                return root
            raise NotReadyError(f"{conflict} Give another --run-id.") from None

    def root(self, patience: float = 0.0) -> dict[str, Any]:
        """The launcher's Job, which owns all other objects."""
        return dict(self._ask(self._about_job("read"), f"read Job {self.job.name}", patience))

    def pods(self, patience: float = 0.0) -> list[dict[str, Any]]:
        return self._list("pod", patience, label_selector=f"{RUN_LABEL}={self.job.name}")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a Job, which say why it makes no pods."""
        return self._list("event", 0.0, field_selector=f"involvedObject.name={name}")

    def _list(self, kind: str, patience: float, **selector: str) -> list[dict[str, Any]]:
        request = partial(getattr(self._core, f"list_namespaced_{kind}"), self.job.namespace, **selector, **_HOW)
        return list(self._ask(request, f"list {kind}s", patience).get("items") or ())

    def hold(self) -> bool:
        """Let the launcher's Job have no pod any more: its launcher gets SIGTERM, and the workers are there still.

        Return whether that can be had: a Job of Volcano ends all pods at once.
        """
        if not self.job.volcano:
            request = self._about_job("patch", {"spec": {"parallelism": 0}})
            self._ask(request, f"stop Job {self.job.name}", PATIENCE)
        return not self.job.volcano

    def delete(self, patience: float = PATIENCE) -> None:
        """Delete the launcher's Job and with it all that it owns."""
        with suppress(NotFound):
            request = self._about_job("delete", propagation_policy="Foreground")
            self._ask(request, f"delete Job {self.job.name}", patience)

    def _about_job(self, verb: str, body: Any = None, **options: Any) -> Callable[[], Any]:
        """A request about the launcher's Job, which may be one of Volcano."""
        bodies = () if body is None else (body,)
        name = () if verb == "create" else (self.job.name,)
        if self.job.volcano:
            method = getattr(self._custom, f"{_CUSTOM_VERBS.get(verb, verb)}_namespaced_custom_object")
            return partial(method, *VOLCANO, self.job.namespace, "jobs", *name, *bodies, **{**_HOW, **options})
        method = getattr(self._batch, f"{verb}_namespaced_job")
        return partial(method, *name, self.job.namespace, *bodies, **{**_HOW, **options})

    def _ask(self, request: Callable[[], Any], what: str, patience: float) -> Any:
        """Make a request, again and again for so many seconds where the server cannot be reached or is busy."""
        import urllib3
        from kubernetes.client import ApiException

        until = time.monotonic() + patience
        is_repeated = False
        while True:
            try:
                return parse_json(request().data)
            except ApiException as error:
                why = _message(error)
                if error.status == 404:
                    raise NotFound(what) from None
                if error.status == 409 and what.startswith("create"):
                    raise Conflict(f"cannot {what}: {why}", is_repeated) from None
                if error.status not in (0, None, *_AGAIN):
                    raise NotReadyError(f"cannot {what}: {why}") from None
                if not error.status:  # the client's own form of an error of TLS
                    why = f"the API server at {self._server} is not trusted: {one_line(error.reason)}."
            except (urllib3.exceptions.HTTPError, OSError, Unreadable) as error:
                why = f"the API server at {self._server} does not answer: {why_no_answer(error)}."
            if time.monotonic() > until:
                raise NoAnswer(what, why) from None
            is_repeated = True
            time.sleep(_PAUSE)

    def log(self, pod: str, follow: float = 0.0, since: float | None = None) -> Iterator[bytes]:
        """Yield the lines of a pod's log, of the last seconds where given, until it is silent for `follow` s."""
        import urllib3
        from kubernetes.client import ApiException

        options: dict[str, Any] = {"since_seconds": int(since) + 1} if since is not None else {}
        options |= {"follow": follow > 0, "_preload_content": False, "_request_timeout": (SECONDS, follow or SECONDS)}
        what = f"read the log of pod {pod}"
        try:
            answer = self._core.read_namespaced_pod_log(pod, self.job.namespace, **options)
            rest = b""
            for data in answer.stream(1 << 16, decode_content=False):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
        except ApiException as error:
            raise NoAnswer(what, _message(error)) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if not follow or not isinstance(error, urllib3.exceptions.ReadTimeoutError):
                raise NoAnswer(what, why_no_answer(error)) from None


def part_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get(PART_LABEL, ""))


def mark_of(job: Mapping[str, Any]) -> str:
    return str((job["metadata"].get("annotations") or {}).get(SUBMISSION) or "")


def _message(error: Any) -> str:
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return str(parse_json(error.body)["message"]).rstrip(".") + "."
    return f"the API server answers {error.status} {error.reason}."
