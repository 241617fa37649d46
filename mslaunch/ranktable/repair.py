"""Repairing what is safe to repair in a rank table, and saying what was changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from mslaunch.ranktable.rules import objects
from mslaunch.ranktable.servers import Device, RankTable
from mslaunch.ranktable.versions import absent_version

_SCALARS = ("device_id", "rank_id", "device_port", "host_port", "backup_device_port", "super_device_id", "server_id")


def repair(raw: Any) -> tuple[Any, list[str]]:
    """Return a repaired copy of a table with servers, and one sentence a change."""
    fixed = copy.deepcopy(raw)
    changes: list[str] = []
    if not isinstance(fixed, dict) or not isinstance(fixed.get("server_list"), list):
        return fixed, changes
    if (absent := absent_version(fixed)) is not None:
        changes.append(f"version '{absent[0]}' was added")
        fixed = {"version": absent[0], **fixed}
    servers = [server for server in fixed["server_list"] if isinstance(server, dict)]
    devices = [device for server in servers for device in objects(server.get("device"))]
    quoted = sum(_quote(item) for item in (fixed, *servers, *devices))
    if quoted:
        changes.append(f"{quoted} numbers became texts")
    if fixed.get("server_count") != str(len(servers)):
        changes.append(f"server_count {fixed.get('server_count')!r} became '{len(servers)}'")
        fixed["server_count"] = str(len(servers))
    if fixed.get("status") != "completed":
        changes.append(f"status {fixed.get('status')!r} became 'completed'")
        fixed["status"] = "completed"
    ranks = [device.get("rank_id") for device in devices]
    right = [str(rank) for rank in range(len(devices))]
    if ranks != right:
        changes.append(f"ranks were renumbered 0 to {len(devices) - 1} in the order of the servers")
        for device, rank in zip(devices, right, strict=True):
            device["rank_id"] = rank
    return fixed, changes


def _quote(item: dict[str, Any]) -> int:
    names = (*_SCALARS, "version", "server_count", "status")
    numbers = [name for name in names if isinstance(item.get(name), (int, float)) and not isinstance(item[name], bool)]
    for name in numbers:
        item[name] = str(item[name])
    return len(numbers)


def differences(old: RankTable, new: RankTable) -> Iterator[str]:
    """Yield one sentence for everything in which two tables differ."""
    if old.version != new.version:
        yield f"version {old.version} became {new.version}"
    before, after = _places(old), _places(new)
    for place in before:
        if place not in after:
            yield f"{_words(place)}: gone (was rank {before[place].rank_id})"
    for place, device in after.items():
        if place not in before:
            yield f"{_words(place)}: new (rank {device.rank_id})"
            continue
        was = before[place]
        for name in ("rank_id", "device_ip", "super_device_id"):
            if getattr(was, name) != getattr(device, name):
                yield f"{_words(place)}: {name} {getattr(was, name)} became {getattr(device, name)}"


def _places(table: RankTable) -> dict[tuple[str, int], Device]:
    return {(server.server_id, device.device_id): device for server in table.servers for device in server.devices}


def _words(place: tuple[str, int]) -> str:
    return f"{place[0]} device {place[1]}"
