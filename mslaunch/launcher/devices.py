"""The NPUs and GPUs of this machine: which of them the ranks of a job see, and which other runs use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.errors import HostsNotReady
from mslaunch.plan.model import Plan
from mslaunch.plan.spec import JobSpec
from mslaunch.shared.device_locks import holders
from mslaunch.shared.visible_devices import DEVICE_FILES, VARIABLES, device_numbers, limit, seen_here
from mslaunch.words import describe_held, describe_limit


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """The devices of one target that ranks on this machine see."""

    target: str
    numbers: tuple[int, ...] = ()
    limit: str = ""
    """What hides some of them, as a clause; nothing where nothing does."""


def find_devices(device_target: str | None, variables: Mapping[str, str] | None = None) -> LocalDevices:
    """Return the target and the devices of this machine: as configured, else Ascend, else GPU, else CPU.

    `variables` are those that the job sets for its ranks.
    """
    environment = {**os.environ, **(variables or {})}
    found = {target: _of_target(target, environment) for target in DEVICE_FILES} | {"CPU": LocalDevices("CPU")}
    if device_target in found:
        return found[device_target]
    hidden = "; ".join(one.limit for one in found.values() if one.limit)
    return next((one for one in found.values() if one.numbers), LocalDevices("CPU", limit=hidden))


def _of_target(target: str, environment: Mapping[str, str]) -> LocalDevices:
    stem = DEVICE_FILES[target]
    seen, there = seen_here(stem, environment), len(device_numbers(stem))
    hides = len(seen) < there
    by = describe_limit(limit(stem, environment), tuple(seen.values()), there, target) if hides else ""
    return LocalDevices(target, tuple(seen), by)


def job_variables(spec: JobSpec) -> dict[str, str]:
    """The variables of a job that say which devices its ranks see."""
    given = {name: os.environ.get(name) if value is None else value for name, value in spec.launch.env.items()}
    return {name: value for name in VARIABLES.values() if (value := given.get(name)) is not None}


def check_held_devices(plan: Plan) -> None:
    """Refuse devices of this machine that other runs use; the agent takes them only later, for certain."""
    stem = DEVICE_FILES.get(plan.device_target)
    if stem is not None and not plan.share_devices:
        devices = [worker.device_id for worker in plan.workers if worker.device_id is not None]
        if held := holders(stem, devices, {**os.environ, **plan.env}):
            raise HostsNotReady(describe_held(held))
