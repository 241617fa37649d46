"""What the official client's errors mean, in this program's words."""

from __future__ import annotations

from collections.abc import Iterator

from mslaunch.errors import did_you_mean

_ADVICE = "Set KUBECONFIG, or see `kubectl config view`."


def why_no_answer(error: BaseException) -> str:
    """Say in a clause why a request had no answer that can be read."""
    from urllib3 import exceptions

    found = tuple(_causes(error))
    words = next((one.strerror for one in found if isinstance(one, OSError) and one.strerror), None)
    if words:
        return words[:1].lower() + words[1:]
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised for."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def one_line(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
