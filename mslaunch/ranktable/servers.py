"""A rank table as data: servers with their devices, each device a rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from mslaunch.errors import RequestError


@dataclass(frozen=True, slots=True)
class Device:
    """One NPU and the rank that runs on it."""

    device_id: int
    rank_id: int = 0
    device_ip: str | None = None
    super_device_id: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """One host of a table."""

    server_id: str
    devices: tuple[Device, ...]
    super_pod: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank and where it runs."""

    rank: int
    server: str
    device_id: int


@dataclass(frozen=True, slots=True)
class RankTable:
    """One table of any version."""

    name: str
    version: str
    servers: tuple[Server, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All ranks, in order."""
        entries = [Entry(d.rank_id, server.server_id, d.device_id) for server in self.servers for d in server.devices]
        return tuple(sorted(entries, key=lambda entry: entry.rank))


def number(servers: Iterable[Server]) -> tuple[Server, ...]:
    """Number the ranks server by server, in the order given."""
    ranks = count()
    numbered = []
    for server in servers:
        devices = tuple(replace(device, rank_id=next(ranks)) for device in server.devices)
        numbered.append(replace(server, devices=devices))
    return tuple(numbered)


def merge(tables: Sequence[RankTable], by_server: bool = False) -> RankTable:
    """Put tables together and renumber; what stands in two of them, or does not fit, is refused."""
    versions = {table.version for table in tables}
    if len(versions) > 1:
        listing = ", ".join(f"{table.name} is {table.version}" for table in tables)
        raise RequestError(f"tables of one version can be merged: {listing}. Convert them first.")
    owners: dict[str, str] = {}
    for table in tables:
        for server in table.servers:
            things = [f"server {server.server_id}"]
            things += [f"address {device.device_ip}" for device in server.devices if device.device_ip]
            for thing in things:
                if thing in owners:
                    raise RequestError(f"{thing} is in {owners[thing]} and in {table.name}. Leave it in one.")
            owners |= dict.fromkeys(things, table.name)
    servers = [server for table in tables for server in table.servers]
    if by_server:
        servers.sort(key=lambda server: server.server_id)
    # Servers of one super pod must stand together: keep the order in which the pods first came.
    pods = list(dict.fromkeys(server.super_pod for server in servers))
    servers.sort(key=lambda server: pods.index(server.super_pod))
    return RankTable("merged", tables[0].version, number(servers))
