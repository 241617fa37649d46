"""Which transports there are, and which of them a job takes: five rows, and those that plug-ins add."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mslaunch import plugins
from mslaunch.errors import RequestError, did_you_mean
from mslaunch.hosts import is_this_machine
from mslaunch.transports.base import JobContext, Tell, Transport, ignore
from mslaunch.transports.cluster_environment import detect, in_slurm_allocation

if TYPE_CHECKING:
    from mslaunch.hosts import Host
    from mslaunch.settings.launch import LaunchSettings

    Predicate = Callable[[LaunchSettings, tuple[Host, ...], Mapping[str, str]], bool]

GROUP = "mslaunch.transports"


def _joins(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
    """Tell whether the settings, or the system that has started this command, mean several nodes that join."""
    del hosts
    several = launch.nnodes is not None and launch.nnodes[1] > 1
    spread = launch.workers is not None and launch.workers_per_node not in (None, launch.workers)
    if several or spread or launch.launcher_only or launch.node_rank:
        return True
    if launch.nnodes is not None or launch.hosts is not None:
        return False
    if launch.master is not None and launch.workers is None:
        return True
    if launch.hostfile is not None:
        return False
    cluster = detect(environment)
    return cluster is not None and cluster.starts_all and (cluster.nodes or 1) > 1


def _names_other_hosts(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
    del launch, environment
    return bool(hosts) and not is_this_machine(hosts)


def _is_in_allocation(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
    del launch
    return not hosts and in_slurm_allocation(environment)


def _never(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
    """Only --transport submits to a cluster: its settings stand in files of jobs that run elsewhere too."""
    del launch, hosts, environment
    return False


def _always(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> bool:
    del launch, hosts, environment
    return True


@dataclass(frozen=True, slots=True)
class TransportRow:
    """What is known of a built-in transport without importing it."""

    location: str
    """Its module and class."""
    is_implied: Predicate
    """Tells whether a job that names no transport takes this one."""
    own_settings: tuple[str, ...] = ()
    """Settings that only transports which list them understand."""


BUILT_IN: Mapping[str, TransportRow] = {
    "join": TransportRow(
        "mslaunch.transports.join:JoinTransport",
        _joins,
        ("workers_per_node", "launcher_only", "join_timeout", "secret_file"),
    ),
    "ssh": TransportRow("mslaunch.transports.ssh:SshTransport", _names_other_hosts),
    "slurm": TransportRow(
        "mslaunch.transports.slurm:SlurmTransport",
        _is_in_allocation,
        ("nodes", "partition", "time", "account", "requeue", "sbatch_args"),
    ),
    "kubernetes": TransportRow(
        "mslaunch.transports.kubernetes.kubernetes_queue:KubernetesTransport",
        _never,
        ("nodes", "image", "namespace", "volcano", "kubernetes", "join_timeout"),
    ),
    "local": TransportRow("mslaunch.transports.local:LocalTransport", _always),
}
"""The first row that is implied is taken."""


def implied(launch: LaunchSettings, hosts: tuple[Host, ...], environment: Mapping[str, str]) -> str:
    """Return the name of the transport of a job that names none."""
    return next(name for name, row in BUILT_IN.items() if row.is_implied(launch, hosts, environment))


def choose(job: JobContext, tell: Tell = ignore) -> Transport:
    """Make the transport that a job names, else the implied one; refuse a job that it cannot carry out."""
    name = job.spec.launch.transport
    if name is None:
        name = implied(job.spec.launch, job.hosts, job.environment)
    transport = make(name, job.spec.sources["transport"], tell)
    sizes = {job.environment.get(variable) or "1" for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")}
    is_rank = job.environment.get("MSLAUNCH_RUN_DIR")  # a rank that launches has the size of its own job
    if sizes != {"1"} and not is_rank and not transport.runs_on_every_node:
        raise RequestError(
            "mpirun has started mslaunch more than once, and each would launch the whole job. Leave mpirun out, and "
            "give --workers N, with --method mpirun where mpirun shall start the ranks."
        )
    transport.check_request(job)
    understood = transport.own_settings
    if name in BUILT_IN:
        understood = BUILT_IN[name].own_settings
    for other, row in BUILT_IN.items():
        for setting in row.own_settings:
            if setting not in understood and job.is_typed(setting):
                flag = job.spec.sources[setting]
                raise RequestError(f"{flag} is for {make(other).label}. Add --transport {other}, or leave it out.")
    return transport


def make(name: str, source: str = "--transport", tell: Tell = ignore) -> Transport:
    """Make the transport of this name, for one job."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].location.partition(":")
        built_in: type[Transport] = getattr(importlib.import_module(module), attribute)
        return built_in(tell)
    transport = plugins.load(GROUP, name, lambda loaded: _check_plugin(name, loaded)(tell))
    if transport is None:
        names = [*BUILT_IN, *plugins.names(GROUP)]
        hint = did_you_mean(name, names) or f". There are {', '.join(names)}."
        raise RequestError(f"{source}: there is no transport {name!r}{hint}")
    return transport


def _check_plugin(name: str, loaded: Any) -> type[Transport]:
    """Refuse what is not a transport here, not in the middle of a job."""
    if not isinstance(loaded, type) or not issubclass(loaded, Transport):
        raise TypeError(f"{loaded!r} is not a subclass of mslaunch.transports.base.Transport")
    if loaded.name != name:  # a run's record has the transport's name, by which it is loaded again
        raise ValueError(f"its name is {loaded.name!r}, and the entry point calls it {name!r}")
    return loaded
