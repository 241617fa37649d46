"""The rules of rank tables, version by version, as HCCL applies them; what is wrong, where, and the fix."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable

Path = tuple[str | int, ...]
SIZE_LIMIT = 16 << 20  # 65,536 ranks, the most that HCCL takes, fit twice
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be."""

    path: Path
    what: str
    fix: str
    code: str | None = None
    """The error that HCCL would answer with."""
    severity: Literal["error", "warning"] = "error"
    line: int = 1
    column: int = 1

    def words(self, name: str) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        place = place.lstrip(".") or "the table"
        answer = f" (HCCL: {self.code})" if self.code else ""
        return f"{name}:{self.line}:{self.column}: {self.severity}: {place}: {self.what}{answer}. {self.fix}"


class TableUnreadable(Exception):
    """The text is no JSON, or none that a table can be."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


def read_json(text: str) -> Any:
    """Parse JSON; broken, repeated or bottomless input is a finding, never a traceback."""
    if len(text) > SIZE_LIMIT:
        raise TableUnreadable(Finding((), f"over {SIZE_LIMIT >> 20} MB is no rank table", "Name the right file."))
    try:
        return parse_json(text, _no_repetition)
    except Unreadable as error:
        line, column = error.line or 1, error.column or 1
        raise TableUnreadable(Finding((), str(error), "Mend the JSON.", line=line, column=column)) from None


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Unreadable(f"the field {twice!r} stands twice in one object")
    return fields


def locate(text: str, findings: Iterable[Finding]) -> list[Finding]:
    """Give every finding the line and column of its place, in one walk through the text."""
    paths = {finding.path for finding in findings if finding.path}
    places = dict(_walk(text, paths)) if paths else {}
    located = []
    for finding in findings:
        path = finding.path
        while path and path not in places:
            path = path[:-1]
        line, column = places.get(path, (finding.line, finding.column))
        located.append(replace(finding, line=line, column=column))
    return located


def _walk(text: str, paths: set[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield where each of these places, or the last one above it, begins."""
    above = {path[:end] for path in paths for end in range(1, len(path) + 1)}
    stack: list[str | int | None] = []
    line, line_start, at = 1, 0, 0
    key: str | None = None
    expects_key = False
    for token in _TOKEN.finditer(text):
        newlines = text.count("\n", at, token.start())
        if newlines:
            line += newlines
            line_start = text.rfind("\n", 0, token.start()) + 1
        at = token.start()
        word = token[0]
        if word in "}]":
            stack.pop()
            expects_key = False
        elif word == ",":
            top = stack[-1] if stack else None
            if isinstance(top, int):
                stack[-1] = top + 1
            expects_key = not isinstance(top, int)
        elif word == ":":
            expects_key = False
        elif expects_key:
            key = json.loads(word)
            stack[-1] = key
        else:
            path = tuple(part for part in stack if part is not None)
            if path in above:
                yield path, (line, at - line_start + 1)
            if word == "{":
                stack.append(None)
                expects_key = True
            elif word == "[":
                stack.append(0)


_DIE_PORT = re.compile(r"\d+/\d+")
QUADS_910A = {"0123", "4567", "0145", "0246", "0347", "1256", "1357", "2367"}
"""Sets of four devices that a 910A server can use together."""
MOST_RANKS = 65536


@dataclass(frozen=True, slots=True)
class TableContext:
    """What a table is checked against besides itself."""

    soc: str | None = None
    workers: int | None = None


def check_servers(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from _check_status(raw)
    servers = raw.get("server_list")
    if not isinstance(servers, list) or not servers:
        yield _missing((), "server_list", "a list of servers")
        return
    yield from _check_count(raw, "server_count", len(servers))
    ranks: list[tuple[int, Path]] = []
    seen: dict[str, dict[Any, Path]] = {"server_id": {}, "device_ip": {}}
    for index, server in enumerate(servers):
        path: Path = ("server_list", index)
        if not isinstance(server, dict):
            yield Finding(path, f"a server is an object, got {kind(server)}", "Write server_id and device.", "EI0004")
            continue
        yield from _check_text(server, path, "server_id", seen["server_id"], longest=64)
        if "host_ip" in server and not _is_address(server["host_ip"]):
            what = f"host_ip is no address: {server['host_ip']!r}"
            yield Finding((*path, "host_ip"), what, "Write for example 10.0.0.1.", "EI0014")
        yield from _devices(server, path, len(servers), job, ranks, seen["device_ip"])
    yield from _ranks(ranks, job)
    yield from _check_families(seen["device_ip"])
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
        yield _missing(path, "device", "a list of devices")
        return
    used: dict[Any, Path] = {}
    for index, device in enumerate(devices):
        place: Path = (*path, "device", index)
        if not isinstance(device, dict):
            yield Finding(place, f"a device is an object, got {kind(device)}", "Write device_id and rank_id.", "EI0004")
            continue
        yield from _check_number(device, place, "device_id", used)
        yield from _check_number(device, place, "rank_id", {})
        rank = str(device.get("rank_id"))
        if rank.isdecimal() and len(rank) < 9:
            ranks.append((int(rank), (*place, "rank_id")))
        yield from _check_address(device, place, servers > 1 or job.soc == "910a", addresses)
        if "backup_device_ip" in device and not _is_address(device["backup_device_ip"]):
            what = f"backup_device_ip is no address: {device['backup_device_ip']!r}"
            yield Finding((*place, "backup_device_ip"), what, "Write for example 192.168.100.1.", "EI0014")
        for name in ("device_port", "host_port", "backup_device_port"):
            if name in device:
                yield from _check_port(device[name], (*place, name))
    if job.soc != "910a":
        return
    ids = "".join(sorted(str(device.get("device_id")) for device in objects(devices)))
    if len(devices) not in (1, 2, 4, 8):
        what = f"a 910A server uses 1, 2, 4 or 8 devices, got {len(devices)}"
        yield Finding((*path, "device"), what, "Add or remove devices.", "EI0004")
    elif len(devices) == 4 and ids not in QUADS_910A:
        what, allowed = f"devices {ids} cannot work together on a 910A", ", ".join(sorted(QUADS_910A))
        yield Finding((*path, "device"), what, f"Use one of {allowed}.", "EI0004")


def check_super_pods(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from check_servers(raw, job)
    ids = [server.get("server_id") for server in objects(raw.get("server_list"))]
    for index, server in enumerate(objects(raw.get("server_list"))):
        for number, device in enumerate(objects(server.get("device"))):
            place: Path = ("server_list", index, "device", number)
            yield from _check_number(device, place, "super_device_id", {})
    pods = raw.get("super_pod_list")
    if not isinstance(pods, list) or not pods:
        yield _missing((), "super_pod_list", "a list of super pods")
        return
    order: list[Any] = []
    names: dict[Any, Path] = {}
    for index, pod in enumerate(objects(pods)):
        path: Path = ("super_pod_list", index)
        yield from _check_text(pod, path, "super_pod_id", names)
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


def check_groups(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    yield from _check_status(raw)
    groups = raw.get("group_list")
    if not isinstance(groups, list) or not groups:
        yield _missing((), "group_list", "a list of groups (or give the table a version)")
        return
    yield from _check_count(raw, "group_count", len(groups))
    addresses: dict[Any, Path] = {}
    total = 0
    for index, group in enumerate(objects(groups)):
        path: Path = ("group_list", index)
        instances = objects(group.get("instance_list"))
        yield from _check_count(group, "instance_count", len(instances), path)
        for number, instance in enumerate(instances):
            used: dict[Any, Path] = {}
            yield from _check_text(instance, (*path, "instance_list", number), "server_id", {}, longest=64)
            for spot, device in enumerate(objects(instance.get("devices"))):
                place: Path = (*path, "instance_list", number, "devices", spot)
                yield from _check_number(device, place, "device_id", used)
                yield from _check_address(device, place, len(instances) > 1, addresses)
                total += 1
    if job.workers is not None and total != job.workers:
        yield _wrong_size(("group_list",), total, job.workers)


def check_rank_list(raw: dict[str, Any], job: TableContext) -> Iterator[Finding]:
    ranks = raw.get("rank_list")
    if not isinstance(ranks, list) or not ranks:
        yield _missing((), "rank_list", "a list of ranks")
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
        yield from _check_text(level, place, "net_instance_id", {})
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


def _wrong_size(path: Path, ranks: int, workers: int) -> Finding:
    return Finding(path, f"the table has {ranks} ranks, the job has {workers}", "Use a table of the job's size.")


def _check_status(raw: dict[str, Any]) -> Iterator[Finding]:
    status = raw.get("status")
    if status == "initializing":
        what = "status is 'initializing': HCCL waits up to 30 minutes for it to change"
        yield Finding(("status",), what, 'Write "completed".', severity="warning")
    elif status != "completed":
        code = "EI0014" if "status" in raw else "EI0017"
        yield Finding(("status",), f"status must be 'completed', got {status!r}", 'Write "completed".', code)


def _check_count(raw: dict[str, Any], name: str, real: int, path: Path = ()) -> Iterator[Finding]:
    if raw.get(name) != str(real):
        code = "EI0004" if name in raw else "EI0017"
        yield Finding((*path, name), f"{name} must be '{real}', got {raw.get(name)!r}", f'Write "{real}".', code)


def _check_text(
    item: dict[str, Any], path: Path, name: str, seen: dict[Any, Path], longest: int | None = None
) -> Iterator[Finding]:
    value = item.get(name)
    place = (*path, name)
    if not isinstance(value, str) or not value:
        code = "EI0014" if name in item else "EI0017"
        yield Finding(place, f"{name} must be a text, got {value!r}", f'Write "{name}": "…".', code)
    elif longest and len(value) > longest:
        yield Finding(place, f"{name} has {len(value)} characters, {longest} are allowed", "Shorten it.", "EI0014")
    elif value in seen:
        yield Finding(place, f"{name} {value!r} stands twice", "Name each once.", "EI0004")
    else:
        seen[value] = place


def _check_number(item: dict[str, Any], path: Path, name: str, seen: dict[Any, Path]) -> Iterator[Finding]:
    value = item.get(name)
    place = (*path, name)
    if isinstance(value, int) and not isinstance(value, bool):
        what = f"{name} must be a text, got the number {value}: HCCL says it is not string"
        yield Finding(place, what, f'Write "{value}".', "EI0014")
    elif not isinstance(value, str) or not value.isdecimal() or len(value) > 20:
        code = "EI0014" if name in item else "EI0017"
        yield Finding(place, f"{name} must be a number in quotes, got {value!r}", 'Write for example "0".', code)
    elif value in seen:
        yield Finding(place, f"{name} {value!r} stands twice on this server", "Name each once.", "EI0004")
    else:
        seen[value] = place


def _check_address(device: dict[str, Any], path: Path, needed: bool, seen: dict[Any, Path]) -> Iterator[Finding]:
    place = (*path, "device_ip")
    if "device_ip" not in device:
        if needed:
            what = "device_ip is missing, and several servers (or a 910A) need it"
            yield Finding(place, what, "Take it from /etc/hccn.conf or hccn_tool -i N -ip -g.", "EI0017")
        return
    value = device["device_ip"]
    if not isinstance(value, str):
        yield Finding(place, f"device_ip must be a text, got {kind(value)}", "Write it in quotes.", "EI0014")
        return
    for part in value.split(","):
        try:
            address = ipaddress.ip_address(part)
        except ValueError:
            yield Finding(place, f"device_ip is no address: {part!r}", "Write for example 192.168.100.1.", "EI0014")
            continue
        if address in seen:
            yield Finding(place, f"device_ip {part} stands twice", "Every NPU port has its own.", "EI0014")
        else:
            seen[address] = place


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _check_families(addresses: dict[Any, Path]) -> Iterator[Finding]:
    families = {address.version for address in addresses}
    if len(families) > 1:
        first = next(iter(addresses)).version
        place = next(path for address, path in addresses.items() if address.version != first)
        yield Finding(place, "IPv4 and IPv6 addresses are mixed", "Use one family for all devices.", "EI0014")


def _check_port(value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(value, str) or not value.isdecimal() or not 1 <= int(value[:9]) <= 65535:
        yield Finding(path, f"a port is 1 to 65535 in quotes, got {value!r}", 'Write for example "16666".', "EI0014")


def _missing(path: Path, name: str, what: str) -> Finding:
    return Finding((*path, name), f"{name} must be {what}", "Start from a sample: mslaunch examples list.", "EI0017")


def objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
