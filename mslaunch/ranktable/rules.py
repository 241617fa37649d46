"""The rules of rank tables, version by version, as HCCL applies them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mslaunch.ranktable.fields import (
    absent_version,
    check_address,
    check_count,
    check_families,
    check_number,
    check_port,
    check_status,
    check_text,
    is_address,
    kind,
    missing,
    objects,
)
from mslaunch.ranktable.findings import Finding, Path, TableUnreadable, locate, read_json

_DIE_PORT = re.compile(r"\d+/\d+")
QUADS_910A = {"0123", "4567", "0145", "0246", "0347", "1256", "1357", "2367"}
"""Sets of four devices that a 910A server can use together."""
MOST_RANKS = 65536


@dataclass(frozen=True, slots=True)
class TableContext:
    """What a table is checked against besides itself."""

    soc: str | None = None
    workers: int | None = None


def check_table(raw: Any, job: TableContext) -> Iterator[Finding]:
    """Yield everything that is wrong with a table."""
    if not isinstance(raw, dict):
        yield Finding((), f"a table is a JSON object, got {kind(raw)}", "Start from a sample: mslaunch examples list.")
        return
    version = raw.get("version", "standard")
    if version == "1.1":
        what = "a heterogeneous table (1.1), whose rules mslaunch does not know"
        yield Finding(
            ("version",), what, "Check it with HCCL itself; mslaunch train does not take it.", severity="warning"
        )
        return
    if (absent := absent_version(raw)) is not None:
        version, what = absent
        yield Finding((), what, f'Add "version": "{version}".', "EI0014")
    rules = RULES.get(version) if isinstance(version, str) else None
    if rules is None:
        known = "'1.0', '1.1', '1.2', '2.0'"
        what = f"version must be one of {known}, or absent, got {version!r}"
        yield Finding(("version",), what, 'Write "version": "1.0".', "EI0014")
        return
    yield from rules(raw, job)


def _check_servers(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from check_status(raw)
    servers = raw.get("server_list")
    if not isinstance(servers, list) or not servers:
        yield missing((), "server_list", "a list of servers")
        return
    yield from check_count(raw, "server_count", len(servers))
    ranks: list[tuple[int, Path]] = []
    seen: dict[str, dict[Any, Path]] = {"server_id": {}, "device_ip": {}}
    for index, server in enumerate(servers):
        path: Path = ("server_list", index)
        if not isinstance(server, dict):
            yield Finding(path, f"a server is an object, got {kind(server)}", "Write server_id and device.", "EI0004")
            continue
        yield from check_text(server, path, "server_id", seen["server_id"], longest=64)
        if "host_ip" in server and not is_address(server["host_ip"]):
            what = f"host_ip is no address: {server['host_ip']!r}"
            yield Finding((*path, "host_ip"), what, "Write for example 10.0.0.1.", "EI0014")
        yield from _devices(server, path, len(servers), job, ranks, seen["device_ip"])
    yield from _ranks(ranks, job)
    yield from check_families(seen["device_ip"])
    yield from _habits(servers, job)


def _habits(servers: list[Any], job: TableContext) -> Iterator[Finding]:
    """What works, but is not as MindSpore's documentation wants it."""
    ids = [str(server.get("server_id")) for server in objects(servers)]
    if ids != sorted(ids):
        what = "servers are not in dictionary order of server_id, which MindSpore's documentation asks for"
        yield Finding(("server_list",), what, "Order them, or be sure that all hosts agree.", severity="warning")
    counts = {len(objects(server.get("device"))) for server in objects(servers)}
    if job.soc == "910a" and len(counts) > 1:
        what = "servers have different numbers of devices"
        yield Finding(("server_list",), what, "On 910A, use as many on each.", severity="warning")


def _devices(
    server: dict[str, Any],
    path: Path,
    servers: int,
    job: TableContext,
    ranks: list[tuple[int, Path]],
    addresses: dict[Any, Path],
) -> Iterator[Finding]:
    devices = server.get("device")
    if not isinstance(devices, list) or not devices:
        yield missing(path, "device", "a list of devices")
        return
    used: dict[Any, Path] = {}
    for index, device in enumerate(devices):
        place: Path = (*path, "device", index)
        if not isinstance(device, dict):
            yield Finding(place, f"a device is an object, got {kind(device)}", "Write device_id and rank_id.", "EI0004")
            continue
        yield from check_number(device, place, "device_id", used)
        yield from check_number(device, place, "rank_id", {})
        rank = str(device.get("rank_id"))
        if rank.isdecimal() and len(rank) < 9:
            ranks.append((int(rank), (*place, "rank_id")))
        yield from check_address(device, place, servers > 1 or job.soc == "910a", addresses)
        if "backup_device_ip" in device and not is_address(device["backup_device_ip"]):
            what = f"backup_device_ip is no address: {device['backup_device_ip']!r}"
            yield Finding((*place, "backup_device_ip"), what, "Write for example 192.168.100.1.", "EI0014")
        for name in ("device_port", "host_port", "backup_device_port"):
            if name in device:
                yield from check_port(device[name], (*place, name))
    if job.soc == "910a":
        yield from _quads(devices, (*path, "device"))


def _quads(devices: list[Any], path: Path) -> Iterator[Finding]:
    ids = "".join(sorted(str(device.get("device_id")) for device in devices if isinstance(device, dict)))
    if len(devices) not in (1, 2, 4, 8):
        what = f"a 910A server uses 1, 2, 4 or 8 devices, got {len(devices)}"
        yield Finding(path, what, "Add or remove devices.", "EI0004")
    elif len(devices) == 4 and ids not in QUADS_910A:
        allowed = ", ".join(sorted(QUADS_910A))
        yield Finding(path, f"devices {ids} cannot work together on a 910A", f"Use one of {allowed}.", "EI0004")


def _check_super_pods(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from _check_servers(raw, job)
    ids = [server.get("server_id") for server in objects(raw.get("server_list"))]
    for index, server in enumerate(objects(raw.get("server_list"))):
        for number, device in enumerate(objects(server.get("device"))):
            place: Path = ("server_list", index, "device", number)
            yield from check_number(device, place, "super_device_id", {})
    pods = raw.get("super_pod_list")
    if not isinstance(pods, list) or not pods:
        yield missing((), "super_pod_list", "a list of super pods")
        return
    order: list[Any] = []
    names: dict[Any, Path] = {}
    for index, pod in enumerate(objects(pods)):
        path: Path = ("super_pod_list", index)
        yield from check_text(pod, path, "super_pod_id", names)
        for number, server in enumerate(objects(pod.get("server_list"))):
            place = (*path, "server_list", number, "server_id")
            server_id = server.get("server_id")
            if server_id not in ids:
                yield Finding(place, f"{server_id!r} is not in server_list", "Name a server of the table.", "EI0004")
            elif server_id in order:
                yield Finding(place, f"{server_id!r} is in two super pods", "Leave it in one.", "EI0004")
            order.append(server_id)
    members = [server_id for server_id in order if server_id in ids]
    if sorted(map(str, members)) == sorted(map(str, ids)) and members != ids:
        what = "the servers of a super pod do not stand together in server_list"
        yield Finding(("server_list",), what, "List them pod by pod, in the order of super_pod_list.", "EI0004")
    for absent in (server_id for server_id in ids if server_id not in order):
        yield Finding(("super_pod_list",), f"server {absent!r} is in no super pod", "Add it to one.", "EI0004")


def _check_groups(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from check_status(raw)
    groups = raw.get("group_list")
    if not isinstance(groups, list) or not groups:
        yield missing((), "group_list", "a list of groups (or give the table a version)")
        return
    yield from check_count(raw, "group_count", len(groups))
    addresses: dict[Any, Path] = {}
    total = 0
    for index, group in enumerate(objects(groups)):
        path: Path = ("group_list", index)
        instances = objects(group.get("instance_list"))
        yield from check_count(group, "instance_count", len(instances), path)
        for number, instance in enumerate(instances):
            used: dict[Any, Path] = {}
            yield from check_text(instance, (*path, "instance_list", number), "server_id", {}, longest=64)
            for spot, device in enumerate(objects(instance.get("devices"))):
                place: Path = (*path, "instance_list", number, "devices", spot)
                yield from check_number(device, place, "device_id", used)
                yield from check_address(device, place, len(instances) > 1, addresses)
                total += 1
    if job.workers is not None and total != job.workers:
        yield _wrong_size(("group_list",), total, job.workers)


def _check_rank_list(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    ranks = raw.get("rank_list")
    if not isinstance(ranks, list) or not ranks:
        yield missing((), "rank_list", "a list of ranks")
        return
    if len(ranks) > MOST_RANKS:
        yield Finding(("rank_list",), f"{len(ranks)} ranks, {MOST_RANKS} are allowed", "Use fewer.", "EI0014")
    if raw.get("rank_count") != len(ranks) or isinstance(raw.get("rank_count"), bool):
        what = f"rank_count must be the number {len(ranks)}, got {raw.get('rank_count')!r}"
        yield Finding(("rank_count",), what, f"Write {len(ranks)}.", "EI0014")
    numbers: list[tuple[int, Path]] = []
    for index, item in enumerate(ranks):
        path: Path = ("rank_list", index)
        if not isinstance(item, dict):
            yield Finding(path, f"a rank is an object, got {kind(item)}", "Write rank_id and device_id.", "EI0004")
            continue
        for name in ("rank_id", "local_id", "device_id"):
            value = item.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                code = "EI0014" if name in item else "EI0017"
                yield Finding(
                    (*path, name), f"{name} must be a number, got {value!r}", "Write it without quotes.", code
                )
            elif name == "rank_id":
                numbers.append((value, (*path, name)))
        yield from _levels(item, path)
    yield from _ranks(numbers, job)


def _levels(item: dict[str, Any], path: Path) -> Iterator[Finding]:
    for index, level in enumerate(objects(item.get("level_list"))):
        place: Path = (*path, "level_list", index)
        layer = level.get("net_layer")
        if not isinstance(layer, int) or not 0 <= layer <= 7:
            yield Finding((*place, "net_layer"), f"net_layer is 0 to 7, got {layer!r}", "Write the layer.", "EI0014")
        yield from check_text(level, place, "net_instance_id", {})
        if level.get("net_type") not in ("TOPO_FILE_DESC", "CLOS"):
            what = f"net_type is TOPO_FILE_DESC or CLOS, got {level.get('net_type')!r}"
            yield Finding((*place, "net_type"), what, "Write one of them.", "EI0014")
        for number, address in enumerate(objects(level.get("rank_addr_list"))):
            if address.get("addr_type") not in ("EID", "IPV4", "IPV6"):
                what = f"addr_type is EID, IPV4 or IPV6, got {address.get('addr_type')!r}"
                yield Finding((*place, "rank_addr_list", number, "addr_type"), what, "Write one of them.", "EI0014")
            ports = address.get("ports")
            if not isinstance(ports, list) or not all(isinstance(p, str) and _DIE_PORT.fullmatch(p) for p in ports):
                what = f'ports is a list of "die/port", got {ports!r}'
                yield Finding((*place, "rank_addr_list", number, "ports"), what, 'Write for example ["0/1"].', "EI0014")


RULES: dict[str, Callable[[dict[str, Any], TableContext], Iterator[Finding]]] = {
    "1.0": _check_servers,
    "1.2": _check_super_pods,
    "2.0": _check_rank_list,
    "standard": _check_groups,
}


def _ranks(ranks: list[tuple[int, Path]], job: TableContext) -> Iterator[Finding]:
    """Rank ids are exactly 0 to N-1, and follow the order of the table."""
    seen: set[int] = set()
    for rank, path in ranks:
        if rank in seen:
            yield Finding(path, f"rank_id {rank} stands twice", "Number the ranks 0 to N-1.", "EI0004")
        elif rank >= len(ranks):
            what = f"rank_id {rank} is beyond the {len(ranks)} ranks of the table"
            yield Finding(path, what, f"Number the ranks 0 to {len(ranks) - 1}.", "EI0004")
        seen.add(rank)
    numbers = [rank for rank, _ in ranks]
    if seen == set(range(len(ranks))) and numbers != sorted(numbers):
        path = next(path for (rank, path), right in zip(ranks, sorted(numbers), strict=True) if rank != right)
        what = "rank ids do not follow the order of the servers"
        yield Finding(path, what, "Number them server by server.", "EI0004")
    if job.workers is not None and len(ranks) != job.workers:
        yield _wrong_size((), len(ranks), job.workers)


def _wrong_size(path: Path, found: int, wanted: int) -> Finding:
    return Finding(path, f"the table has {found} ranks, the job has {wanted}", "Use a table of the job's size.")


def validate(text: str, soc: str | None = None, workers: int | None = None, name: str = "") -> list[Finding]:
    """Return everything that is wrong with a table, errors before warnings, in the order of the text."""
    try:
        raw = read_json(text)
    except TableUnreadable as error:
        return [error.finding]
    found = list(check_table(raw, TableContext(soc, workers)))
    if name and not name.endswith(".json"):
        found.append(Finding((), "the file's name must end in .json", "Rename it.", "EI0004"))
    findings = locate(text, found)
    return sorted(findings, key=lambda finding: (finding.severity, finding.line, finding.column))
