"""Which transports there are: five built in, and those that plug-ins add."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mslaunch import plugins
from mslaunch.errors import RequestError, did_you_mean
from mslaunch.transports.base import Transport

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.plan.spec import JobSpec

GROUP = "mslaunch.transports"
BUILT_IN = {
    "join": "mslaunch.transports.join:JoinTransport",
    "ssh": "mslaunch.transports.ssh:SshTransport",
    "slurm": "mslaunch.transports.slurm:SlurmTransport",
    "kubernetes": "mslaunch.transports.kubernetes:KubernetesTransport",
    "local": "mslaunch.transports.local:LocalTransport",
}
"""In the order in which they are asked whether a job that names none is theirs; the last takes what is left."""

_made: dict[str, Transport] = {}


def get(name: str, asked_by: str = "--transport") -> Transport:
    """Return the transport of this name."""
    if name not in _made:
        made = _load(name)
        if made is None:
            known = [*BUILT_IN, *plugins.names(GROUP)]
            hint = did_you_mean(name, known) or f". There are {', '.join(known)}."
            raise RequestError(f"{asked_by}: there is no transport {name!r}{hint}")
        _made[name] = made
    return _made[name]


def _load(name: str) -> Transport | None:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found: type[Transport] = getattr(importlib.import_module(module), attribute)
        return found()
    return plugins.load(GROUP, name, partial(_make, name))


def _make(name: str, loaded: Any) -> Transport:
    """Make the transport of a plug-in; what is no transport is refused here, not in the middle of a job."""
    if not isinstance(loaded, type) or not issubclass(loaded, Transport):
        raise TypeError(f"{loaded!r} is not a subclass of mslaunch.transports.base.Transport")
    made: Transport = loaded()
    if made.name != name:  # a run's record has the transport's name, by which it is found again
        raise ValueError(f"its name is {made.name!r}, and the entry point calls it {name!r}")
    return made


def default(named: tuple[Host, ...], environment: Mapping[str, str]) -> Transport:
    """Return the transport for a job that asks for none."""
    built_in = [get(name) for name in BUILT_IN]
    return next((one for one in built_in if one.is_default(named, environment)), built_in[-1])


def _check_started_once(environment: Mapping[str, str]) -> None:
    """Refuse a launcher that mpirun has started several times; a rank that launches is one of its own job."""
    sizes = [environment.get(name, "") for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")]
    if environment.get("MSLAUNCH_RUN_DIR") or all(size in ("", "1") for size in sizes):
        return
    raise RequestError(
        "mpirun has started mslaunch more than once, and each would launch the whole job. Leave mpirun out, and give "
        "--workers N, with --method mpirun where mpirun shall start the ranks."
    )


def choose(spec: JobSpec, named: tuple[Host, ...], environment: Mapping[str, str]) -> Transport:
    """Return the transport that was asked for, else the one that what was named and where we are suggest."""
    asked = spec.launch.transport
    if asked is None:
        meant = (one for one in map(get, BUILT_IN) if one.is_meant(spec, environment))
        chosen = next(meant, None) or default(named, environment)
    else:
        chosen = get(asked, spec.source("transport"))
    if not chosen.runs_on_every_node:
        _check_started_once(environment)
    chosen.check_request(spec, named, environment)
    for other in (get(name) for name in BUILT_IN):
        for name in other.own_settings:
            flag = spec.source(name)
            typed = flag.startswith("--") and not flag.startswith("--set")
            if typed and name not in chosen.own_settings:
                raise RequestError(f"{flag} is for {other.label}. Add --transport {other.name}, or leave it out.")
    return chosen
