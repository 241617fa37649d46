"""A rank table as the launcher needs it: which rank uses which device of which server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mslaunch.errors import RankTableUnreadable


@dataclass(frozen=True, slots=True)
class Entry:
    rank: int
    server: str
    device_id: int


@dataclass(frozen=True, slots=True)
class RankTable:
    """One table, its entries in rank order."""

    name: str
    version: str
    entries: tuple[Entry, ...]


def read_table(text: str, name: str) -> RankTable:
    """Read a table of any version; what is not one is refused with the reason."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RankTableUnreadable(name, str(error)) from None
    if not isinstance(raw, dict):
        raise RankTableUnreadable(name, "it is not a JSON object")
    version = str(raw.get("version", "standard"))
    reader = {"1.0": _servers, "1.2": _servers, "2.0": _rank_list, "standard": _groups}.get(version)
    if reader is None:
        raise RankTableUnreadable(name, f"version {version!r} is none of 1.0, 1.2, 2.0 (HCCL would say EI0014)")
    try:
        entries = tuple(sorted(reader(raw), key=lambda entry: entry.rank))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RankTableUnreadable(name, f"{type(error).__name__}: {error}") from None
    if not entries:
        raise RankTableUnreadable(name, "it names no device")
    if [entry.rank for entry in entries] != list(range(len(entries))):
        raise RankTableUnreadable(name, f"its rank ids are not exactly 0 to {len(entries) - 1}")
    return RankTable(name, version, entries)


def generate(servers: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Write a version 1.0 table: servers in the order given, ranks contiguous."""
    rank = 0
    server_list = []
    for server_id, devices in servers:
        listed = []
        for device in devices:
            listed.append({"device_id": str(device), "rank_id": str(rank)})
            rank += 1
        server_list.append({"server_id": server_id, "host_nic_ip": "reserve", "device": listed})
    table = {"version": "1.0", "server_count": str(len(server_list)), "server_list": server_list, "status": "completed"}
    return json.dumps(table, indent=2) + "\n"


def _servers(raw: Any) -> Iterator[Entry]:
    for server in raw["server_list"]:
        for device in server["device"]:
            yield Entry(int(device["rank_id"]), str(server["server_id"]), int(device["device_id"]))


def _rank_list(raw: Any) -> Iterator[Entry]:
    for item in raw["rank_list"]:
        yield Entry(int(item["rank_id"]), str(item.get("server_id", "")), int(item["device_id"]))


def _groups(raw: Any) -> Iterator[Entry]:
    rank = 0
    for group in raw["group_list"]:
        for instance in group["instance_list"]:
            for device in sorted(instance["devices"], key=lambda item: int(item["device_id"])):
                yield Entry(rank, str(instance["server_id"]), int(device["device_id"]))
                rank += 1
