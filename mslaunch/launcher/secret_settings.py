"""Settings that hold secrets, launch.webhook and launch.env: their values are kept out of files of runs and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.launcher.request import Request
from mslaunch.plan.sweep import Combination
from mslaunch.settings.yaml_config import read_scalar, write_scalar
from mslaunch.shared.secret_names import is_secret

_ENV, _WEBHOOK = "launch.env", "launch.webhook"


def split_secrets(assignments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the texts of `--set` without the values of secrets, and flags that give the same values."""
    kept: list[str] = []
    flags: dict[str, Any] = {}
    for one in assignments:
        key, _, raw = one.partition("=")
        if key == _WEBHOOK:
            flags["webhook"] = read_scalar(raw)
            continue
        variables = read_scalar(raw) if key == _ENV else None
        if isinstance(variables, dict) and (secrets := _secrets(variables)):
            flags["env"] = secrets
            kept.append(f"{_ENV}={write_scalar({**variables, **dict.fromkeys(secrets)})}")
        else:
            kept.append(one)
    return tuple(kept), flags


def without_secrets(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags for a file: no address of a webhook, and of secret variables the names alone."""
    kept = {name: value for name, value in flags.items() if name != "webhook" or value is None}
    if env := kept.get("env"):
        kept["env"] = {**env, **dict.fromkeys(_secrets(env))}
    return kept


def take_secrets(request: Request, combinations: tuple[Combination, ...]) -> tuple[Request, tuple[Combination, ...]]:
    """Move the secrets of a sweep's combinations, which are shown and kept, to the flags, which all runs share."""
    split = [split_secrets(one.assignments) for one in combinations]
    secrets = {name: value for _, found in split for name, value in found.items()}
    for name in secrets:
        if f"launch.{name}" in combinations[0].varied:
            why = "it holds a secret, which is the same for all runs of a sweep. Give it one value."
            raise RequestError(f"--set launch.{name}: {why}")
    typed = [{key: raw for key, _, raw in (one.partition("=") for one in kept)} for kept, _ in split]
    combinations = tuple(replace(one, typed=own) for one, own in zip(combinations, typed, strict=True))
    flags = {**secrets, **request.flags}
    if "env" in secrets:
        flags["env"] = {**secrets["env"], **(request.flags.get("env") or {})}
    return replace(request, flags=flags), combinations


def _secrets(variables: Mapping[Any, Any]) -> dict[Any, Any]:
    given = {name: value for name, value in variables.items() if value is not None}
    return {name: value for name, value in given.items() if is_secret(str(name), str(value))}
