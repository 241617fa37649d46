"""Which cores and which memory each rank of a host gets. Pure: what the host has is passed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mslaunch.errors import RequestError
from mslaunch.hosts import Host
from mslaunch.plan.model import Facts
from mslaunch.plan.spec import JobSpec
from mslaunch.ranges import format_ranges


@dataclass(frozen=True, slots=True)
class Binding:
    """Where one rank may run; no cores: anywhere."""

    cores: tuple[int, ...] = ()
    node: int | None = None
    """The NUMA node whose memory it prefers."""
    memory: tuple[int, ...] = ()
    """The NUMA nodes that all of its memory comes from."""


def bind_ranks(spec: JobSpec, host: Host, facts: Facts, first_rank: int) -> list[Binding]:
    """Bind the ranks of one host, in their order: as maps say, to the nodes of their devices, or in equal shares."""
    launch, cores = spec.launch, facts.hosts[host.name].cores
    if launch.core_map:
        bindings = _by_map(spec, host, cores, first_rank)
    elif launch.node_map:
        bindings = _by_node_map(spec, host, facts, first_rank)
    elif launch.numa:
        bindings = _by_node(host, facts)
    elif launch.bind_cores:
        bindings = [Binding(core_share(cores, index, len(host.devices))) for index in range(len(host.devices))]
    else:
        bindings = [Binding()] * len(host.devices)
    if not launch.memory_map:
        return bindings
    nodes = _read_map(spec, "memory_map", host, first_rank)
    _check_nodes(spec, "memory_map", host, facts, nodes)
    return [Binding(bound.cores, None, memory) for bound, memory in zip(bindings, nodes, strict=True)]


def describe(spec: JobSpec, hosts: tuple[Host, ...], facts: Facts) -> Iterator[str]:
    """Say which ranks could not be bound as asked, and which bindings are known only when hosts have been asked."""
    if spec.launch.node_map and any(facts.hosts[host.name].is_assumed for host in hosts):
        yield "the cores of NUMA nodes are known once the hosts have been asked, so this plan does not show them"
    if not spec.launch.numa or spec.launch.core_map or spec.launch.node_map:
        return
    for host in hosts:
        if not facts.hosts[host.name].numa.nodes:
            yield f"{host.name}: its NUMA nodes are not known, so its ranks are bound to their share of all cores"
            continue
        nodes = _device_nodes(host, facts)
        missing = [device for device in host.devices if device not in nodes]
        if missing:
            yield (
                f"{host.name}: the NUMA node of device {format_ranges(missing)} is not known, so its ranks are bound "
                f"to their share of all cores"
            )


def _by_map(spec: JobSpec, host: Host, cores: tuple[int, ...], first_rank: int) -> list[Binding]:
    shares = _read_map(spec, "core_map", host, first_rank)
    absent = sorted({core for share in shares for core in share} - set(cores))
    if absent:
        raise RequestError(
            f"{spec.sources['core_map']}: core {format_ranges(absent)} cannot be used on {host.name}; "
            f"there are {format_ranges(cores)}."
        )
    return [Binding(share) for share in shares]


def _by_node_map(spec: JobSpec, host: Host, facts: Facts, first_rank: int) -> list[Binding]:
    """Give each rank the cores of its nodes; with bind_cores, ranks of the same nodes share these equally."""
    own = facts.hosts[host.name]
    nodes = _read_map(spec, "node_map", host, first_rank)
    _check_nodes(spec, "node_map", host, facts, nodes)
    bindings = []
    for at, some in enumerate(nodes):
        cores = _both(tuple(sorted(core for node in some for core in own.numa.nodes.get(node, ()))), own.cores)
        if cores and spec.launch.bind_cores:
            cores = core_share(cores, nodes[:at].count(some), nodes.count(some))
        bindings.append(Binding(cores))
    return bindings


def _read_map(spec: JobSpec, setting: str, host: Host, first_rank: int) -> list[tuple[int, ...]]:
    """Return the numbers of each rank of a host; nothing for a rank that the map does not name.

    A plain key is a device where all of them are devices of the host, else a rank.
    """
    shares: Mapping[str, tuple[int, ...]] = getattr(spec.launch, setting)
    plain = {int(key) for key in shares if key.isdigit()}
    by_device = plain <= set(host.devices)
    numbers = []
    for rank, device in enumerate(host.devices, first_rank):
        number = device if by_device else rank
        keys = (f"device{device}", f"rank{rank}", str(number))
        numbers.append(next((shares[key] for key in keys if key in shares), ()))
    return numbers


def _check_nodes(spec: JobSpec, setting: str, host: Host, facts: Facts, nodes: list[tuple[int, ...]]) -> None:
    own = facts.hosts[host.name]
    absent = sorted({node for some in nodes for node in some} - set(own.numa.nodes))
    if absent and not own.is_assumed:
        have = f"there are {format_ranges(sorted(own.numa.nodes))}" if own.numa.nodes else "its nodes are not known"
        raise RequestError(f"{spec.sources[setting]}: {host.name} has no NUMA node {format_ranges(absent)}; {have}.")


def _by_node(host: Host, facts: Facts) -> list[Binding]:
    own = facts.hosts[host.name]
    nodes = {node: usable for node, all_of_it in own.numa.nodes.items() if (usable := _both(all_of_it, own.cores))}
    placed = _device_nodes(host, facts)
    at = [placed.get(device) for device in host.devices]
    result = []
    for index, node in enumerate(at):
        if node is None or node not in nodes:
            result.append(Binding(core_share(own.cores, index, len(at))))
        else:
            before = at[:index].count(node)
            result.append(Binding(core_share(nodes[node], before, at.count(node)), node))
    return result


def _device_nodes(host: Host, facts: Facts) -> Mapping[int, int]:
    """The node of each device; ranks on the CPU are spread over the nodes that have cores for them."""
    own = facts.hosts[host.name]
    if facts.device_target in own.numa.devices:
        return own.numa.devices[facts.device_target]
    if facts.device_target != "CPU":
        return {}
    usable = [node for node, cores in sorted(own.numa.nodes.items()) if _both(cores, own.cores)]
    count = len(host.devices)
    return {device: usable[at * len(usable) // count] for at, device in enumerate(host.devices)} if usable else {}


def _both(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    allowed = set(others)
    return tuple(core for core in some if core in allowed)


def core_share(cores: tuple[int, ...], local_rank: int, ranks: int) -> tuple[int, ...]:
    """Cut the cores into equal shares; with more ranks than cores, ranks take turns on single cores."""
    each = len(cores) // ranks
    if each == 0:
        return (cores[local_rank % len(cores)],)
    return cores[local_rank * each : (local_rank + 1) * each]
