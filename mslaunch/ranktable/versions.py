"""The versions of rank tables: one row each, with its reader, its writer and its rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mslaunch.errors import RankTableUnreadable, RequestError
from mslaunch.ranktable import rules
from mslaunch.ranktable.rules import Finding, TableContext, TableUnreadable, locate, read_json
from mslaunch.ranktable.servers import Device, RankTable, Server, number

HETEROGENEOUS = "1.1"
"""A version of HCCL's that mslaunch neither reads nor writes."""
UNNAMED = "standard"
"""The version of a table that names none."""


def read_table(text: str, name: str) -> RankTable:
    """Read a table of any version; refuse what is not one, with the reason."""
    try:
        raw = read_json(text)
    except TableUnreadable as error:
        raise RankTableUnreadable(name, error.finding.what) from None
    if not isinstance(raw, dict):
        raise RankTableUnreadable(name, "it is not a JSON object")
    if (absent := absent_version(raw)) is not None:
        raise RankTableUnreadable(name, f'{absent[1]}. Add "version": "{absent[0]}"')
    version = str(raw.get("version", UNNAMED))
    if version == HETEROGENEOUS:
        raise RankTableUnreadable(name, "heterogeneous tables (version 1.1) are not known to mslaunch")
    if version not in VERSIONS:
        raise RankTableUnreadable(name, f"version {version!r} is none of {', '.join(NAMED)} (HCCL would say EI0014)")
    try:
        table = RankTable(name, version, tuple(VERSIONS[version].read(raw)))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RankTableUnreadable(name, f"{type(error).__name__}: {error}") from None
    if not table.entries:
        raise RankTableUnreadable(name, "it names no device")
    if [entry.rank for entry in table.entries] != list(range(len(table.entries))):
        raise RankTableUnreadable(name, f"its rank ids are not exactly 0 to {len(table.entries) - 1}")
    return table


def write_table(table: RankTable, version: str | None = None) -> str:
    """Write a table in its own or another version."""
    raw = VERSIONS[version or table.version].write(table)
    return json.dumps(raw, indent=2) + "\n"


def validate(text: str, soc: str | None = None, workers: int | None = None, name: str = "") -> list[Finding]:
    """Return everything that is wrong with a table, errors before warnings, in the order of the text."""
    try:
        raw = read_json(text)
    except TableUnreadable as error:
        return [error.finding]
    findings = list(_check_table(raw, TableContext(soc, workers)))
    if name and not name.endswith(".json"):
        findings.append(Finding((), "the file's name must end in .json", "Rename it.", "EI0004"))
    findings = locate(text, findings)
    return sorted(findings, key=lambda finding: (finding.severity, finding.line, finding.column))


def _check_table(raw: Any, job: TableContext) -> Iterator[Finding]:
    if not isinstance(raw, dict):
        what = f"a table is a JSON object, got {rules.kind(raw)}"
        yield Finding((), what, "Start from a sample: mslaunch examples list.")
        return
    version = raw.get("version", UNNAMED)
    if version == HETEROGENEOUS:
        what = "a heterogeneous table (1.1), whose rules mslaunch does not know"
        advice = "Check it with HCCL itself; mslaunch train does not take it."
        yield Finding(("version",), what, advice, severity="warning")
        return
    if (absent := absent_version(raw)) is not None:
        version, what = absent
        yield Finding((), what, f'Add "version": "{version}".', "EI0014")
    if not isinstance(version, str) or version not in VERSIONS:
        versions = ", ".join(map(repr, sorted([*NAMED, HETEROGENEOUS])))
        what = f"version must be one of {versions}, or absent, got {version!r}"
        yield Finding(("version",), what, 'Write "version": "1.0".', "EI0014")
        return
    yield from VERSIONS[version].check(raw, job)


def absent_version(raw: dict[str, Any]) -> tuple[str, str] | None:
    """Return the version that a table without one needs, and what is wrong with it; None where nothing is."""
    if "version" in raw or VERSIONS[UNNAMED].list_name in raw:
        return None
    for version, row in reversed(VERSIONS.items()):  # a table with super pods has a list of servers too
        if row.list_name in raw:
            return version, f"version is missing: a table with {row.list_name} is of version {version}"
    return None


def _read_servers(raw: Any) -> Iterator[Server]:
    pods = {
        str(server["server_id"]): str(pod["super_pod_id"])
        for pod in raw.get("super_pod_list", ())
        for server in pod["server_list"]
    }
    for server in raw["server_list"]:
        devices = tuple(
            Device(int(d["device_id"]), int(d["rank_id"]), _text(d, "device_ip"), _text(d, "super_device_id"))
            for d in server["device"]
        )
        yield Server(str(server["server_id"]), devices, pods.get(str(server["server_id"])))


def _text(item: dict[str, Any], name: str) -> str | None:
    value = item.get(name)
    if not isinstance(value, (str, type(None))):
        raise TypeError(f"{name} must be a text, got {value!r}")
    return value


def _write_servers(table: RankTable) -> dict[str, Any]:
    servers = [
        {"server_id": server.server_id, "host_nic_ip": "reserve", "device": [_write_device(d) for d in server.devices]}
        for server in table.servers
    ]
    return {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed"}


def _write_device(device: Device, super_pods: bool = False) -> dict[str, str]:
    fields = {"device_id": str(device.device_id)}
    if device.device_ip:
        fields["device_ip"] = device.device_ip
    if super_pods:
        fields["super_device_id"] = str(device.super_device_id)
    return {**fields, "rank_id": str(device.rank_id)}


def _write_super_pods(table: RankTable) -> dict[str, Any]:
    raw = _write_servers(table)
    for server, written in zip(table.servers, raw["server_list"], strict=True):
        if server.super_pod is None or any(device.super_device_id is None for device in server.devices):
            raise RequestError(
                f"{server.server_id} has no super pod or super_device_id, which version 1.2 needs. Give them in the "
                f"cluster's YAML (super_pod, super_device_id; npu-smi info -t spod-info tells)."
            )
        written["device"] = [_write_device(device, super_pods=True) for device in server.devices]
    pods = list(dict.fromkeys(server.super_pod for server in table.servers))
    raw["version"] = "1.2"
    raw["super_pod_list"] = [
        {
            "super_pod_id": pod,
            "server_list": [{"server_id": server.server_id} for server in table.servers if server.super_pod == pod],
        }
        for pod in pods
    ]
    return raw


def _read_groups(raw: Any) -> Iterator[Server]:
    """Ranks follow server order, then device id."""
    servers = []
    for group in raw["group_list"]:
        for instance in group["instance_list"]:
            devices = [Device(int(d["device_id"]), device_ip=_text(d, "device_ip")) for d in instance["devices"]]
            devices.sort(key=lambda device: device.device_id)
            servers.append(Server(str(instance["server_id"]), tuple(devices)))
    yield from number(servers)


def _write_groups(table: RankTable) -> dict[str, Any]:
    instances = []
    for index, server in enumerate(table.servers):
        devices = [{"device_id": str(d.device_id), "device_ip": d.device_ip or ""} for d in server.devices]
        instances.append({"pod_name": str(index), "server_id": server.server_id, "devices": devices})
    group = {
        "group_name": "",
        "instance_count": str(len(instances)),
        "device_count": str(len(table.entries)),
        "instance_list": instances,
    }
    return {"status": "completed", "group_count": "1", "group_list": [group]}


def _read_ranks(raw: Any) -> Iterator[Server]:
    servers: dict[str, list[Device]] = {}
    for item in raw["rank_list"]:
        levels = item.get("level_list") or [{}]
        addresses = levels[0].get("rank_addr_list") or [{}]
        device = Device(int(item["device_id"]), int(item["rank_id"]), _text(addresses[0], "addr"))
        servers.setdefault(str(levels[0].get("net_instance_id", "")), []).append(device)
    for server_id, devices in servers.items():
        yield Server(server_id, tuple(devices))


def _write_ranks(table: RankTable) -> dict[str, Any]:
    ranks = []
    for server in table.servers:
        for local_id, device in enumerate(server.devices):
            kind = "IPV6" if ":" in (device.device_ip or "") else "IPV4"
            address = {"addr_type": kind, "addr": device.device_ip, "ports": ["0/0"]}
            level = {
                "net_layer": 0,
                "net_instance_id": server.server_id,
                "net_type": "TOPO_FILE_DESC",
                "rank_addr_list": [address] if device.device_ip else [],
            }
            ids = {"rank_id": device.rank_id, "local_id": local_id, "device_id": device.device_id}
            ranks.append({**ids, "level_list": [level]})
    return {"version": "2.0", "rank_count": len(ranks), "rank_list": ranks}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of rank tables."""

    list_name: str
    """The list that only tables of this version, and of later ones, have."""
    read: Callable[[Any], Iterator[Server]]
    write: Callable[[RankTable], dict[str, Any]]
    check: Callable[[dict[str, Any], TableContext], Iterator[Finding]]


VERSIONS = {
    "1.0": TableVersion("server_list", _read_servers, _write_servers, rules.check_servers),
    "1.2": TableVersion("super_pod_list", _read_servers, _write_super_pods, rules.check_super_pods),
    "2.0": TableVersion("rank_list", _read_ranks, _write_ranks, rules.check_rank_list),
    UNNAMED: TableVersion("group_list", _read_groups, _write_groups, rules.check_groups),
}
NAMED = [version for version in VERSIONS if version != UNNAMED]
