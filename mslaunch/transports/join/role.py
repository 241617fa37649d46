"""The part of this process in a job whose nodes join: from the settings, and from what the system tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mslaunch.errors import RequestError
from mslaunch.plan.spec import JobSpec
from mslaunch.shared.visible_devices import DEVICE_FILES, seen_here
from mslaunch.transports.cluster_environment import ClusterEnvironment, detect

PORT = 29400
"""Where the launcher listens if nothing else is said; torchrun's port for the same purpose."""
FIX = "Write for example --nnodes 4 --node-rank 0 --master n0:29400"


@dataclass(frozen=True, slots=True)
class Part:
    """How this node takes part."""

    master: str
    """The name or address of the launcher; empty for all addresses of this machine."""
    port: int
    fewest: int = 1
    most: int = 1
    """Nodes of the job, the launcher's own included where it lends devices."""
    rank: int | None = None
    is_launcher: bool | None = None
    """None: whoever can listen at the master's address is the launcher."""
    lends_devices: bool = True
    slots: int | None = None
    timeout: float = 600.0
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The launcher's address as people write it."""
        return f"[{self.master}]:{self.port}" if ":" in self.master else f"{self.master}:{self.port}"


def with_port_of_master(spec: JobSpec) -> JobSpec:
    """Take the master's port from --master-port where --master has none: msrun and torchrun name them apart.

    The launcher listens there; MindSpore's scheduler then gets a free port.
    """
    launch = spec.launch
    if launch.master is None or launch.master_port is None:
        return spec
    host, port = split_master(launch.master, spec.sources["master"])
    if port is not None:
        return spec
    address = Part(host, launch.master_port).place
    launch = replace(launch, master=address, master_port=None)
    source = f"{spec.sources['master']}, {spec.sources['master_port']}"
    sources = {**spec.sources, "master": source, "master_port": "default"}
    return replace(spec, launch=launch, sources=sources)


def settle(spec: JobSpec, environment: Mapping[str, str]) -> Part:
    """Put together what was given and what was found; what was given counts."""
    launch = spec.launch
    cluster = detect(environment) or ClusterEnvironment("nothing")
    host, port = split_master(launch.master, spec.sources["master"]) if launch.master else (None, None)
    host = host if host is not None else cluster.master
    rank = launch.node_rank if launch.node_rank is not None else cluster.rank
    launches = cluster.is_launcher if launch.node_rank is None else None
    is_launcher = launches
    if launch.launcher_only:
        is_launcher = True
    elif launches is None and rank is not None:
        is_launcher = rank == 0
    if host is None:
        raise RequestError(f"which node is the launcher? Name it with --master. {FIX} on every node.")
    slots = launch.workers_per_node or (cluster.slots if launch.workers is None else None)
    fewest, most = _nodes(spec, cluster)
    if is_launcher is not False and most == 0:
        raise RequestError(f"how many nodes are there? Give --nnodes. {FIX} on every node.")
    if rank is not None and most and rank >= most:
        raise RequestError(f"node rank {rank} does not exist: there are {most} nodes, counted from 0.")
    lends_devices = not launch.launcher_only
    if launches is True:
        lends_devices = lends_devices and any(seen_here(stem, environment) for stem in DEVICE_FILES.values())
    return Part(
        master=host,
        port=port or cluster.port or PORT,
        fewest=fewest,
        most=most,
        rank=rank,
        is_launcher=is_launcher,
        lends_devices=lends_devices,
        slots=slots,
        timeout=launch.join_timeout,
        notes=(cluster.words(),) if cluster.sources else (),
    )


def _nodes(spec: JobSpec, cluster: ClusterEnvironment) -> tuple[int, int]:
    launch = spec.launch
    if launch.nnodes is not None:
        return launch.nnodes
    if launch.workers is not None and launch.workers_per_node:
        if launch.workers % launch.workers_per_node:
            raise RequestError(
                f"{launch.workers} ranks ({spec.sources['workers']}) cannot be spread over nodes with "
                f"{launch.workers_per_node} each ({spec.sources['workers_per_node']}). Give --nnodes too."
            )
        nodes = launch.workers // launch.workers_per_node
        return nodes, nodes
    return cluster.nodes or 0, cluster.nodes or 0


def split_master(text: str, source: str) -> tuple[str, int | None]:
    """Read `n0:29400`, `n0`, `fe80::1`, `[fe80::1]:29400` or `:29400`."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")) or text.endswith("]"):
        host, port = text, ""
    plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    wrong = any(map(str.isspace, plain)) or not plain.isprintable() or "[" in plain or "]" in plain
    if wrong or (port and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535 and len(port) < 6)):
        raise RequestError(f"{source}: cannot read {text[:80]!r}. Write for example n0:29400 or [fe80::1]:29400.")
    return plain, int(port) if port else None
