"""Hosts, and their grammar: `n1:8` is a count, `n1:[0-3,6]` and `n1:0-7` name devices, IPv6 is written in brackets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mslaunch.errors import RequestError
from mslaunch.ranges import MOST, parse_ranges

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[^\s:,\[\]]+)(?::(?P<devices>\[[^\]]*\]|[\d-]+))?")
_LINE = re.compile(r"(?P<name>[^\s=]+)(?:\s+slots=(?P<slots>\d{1,5}))?(?:\s+max[-_]slots=\d+)?")
_COMMA = re.compile(r"\s*(?:,\s*|\Z)")
LOCAL = "localhost"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the job and the devices that it gives."""

    name: str
    address: str
    devices: tuple[int, ...]
    user: str | None = None
    port: int | None = None
    python: str | None = None
    """The interpreter there, where it is not the job's."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for its ranks alone."""


def is_this_machine(hosts: tuple[Host, ...]) -> bool:
    """Tell whether the only host is the machine of this process."""
    return len(hosts) == 1 and hosts[0].name in (LOCAL, "127.0.0.1", "::1") and hosts[0].port is None


def parse_hosts(text: str, what: str = "--hosts") -> tuple[Host, ...]:
    """Read `n1:8,n2:[0-3,6],[fe80::1]:0-7`; a host without devices has the one device 0."""
    hosts: list[Host] = []
    slots = at = 0
    text = text.strip()
    while at < len(text):
        match = _HOST.match(text, at)
        comma = _COMMA.match(text, match.end()) if match else None
        if not match or not comma or not match["name"].isprintable():
            excerpt = text[at : at + _SHOWN]
            raise RequestError(f'{what}: cannot read {excerpt!r}. Write for example "n1:8,n2:[0-3,6]".')
        name = match["name"].strip("[]")
        devices = _devices(match["devices"], f"{what}: {name}")
        slots += len(devices)
        _check_slots(slots, what)
        hosts.append(Host(name, name, devices))
        at = comma.end()
    if not hosts:
        raise RequestError(f'{what}: names no host. Write for example "n1:8,n2:8".')
    check_named_once(hosts, what)
    return tuple(hosts)


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """Read Open MPI's and DeepSpeed's spelling: one host a line, `n1 slots=8`."""
    hosts: list[Host] = []
    slots = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if not match or int(match["slots"] or 1) < 1 or not match["name"].isprintable():
            raise RequestError(f'{name}:{number}: cannot read {line[:_SHOWN]!r}. Write for example "node1 slots=8".')
        slots += int(match["slots"] or 1)
        _check_slots(slots, f"{name}:{number}")
        hosts.append(Host(match["name"], match["name"], tuple(range(int(match["slots"] or 1)))))
    check_named_once(hosts, name)
    if not hosts:
        raise RequestError(f'{name}: names no host. Write for example "node1 slots=8".')
    return tuple(hosts)


def _check_slots(slots: int, what: str) -> None:
    if slots > MOST:
        raise RequestError(f"{what}: the hosts have more than {MOST} devices in all. Name fewer.")


def check_named_once(hosts: Iterable[Host], what: str) -> None:
    """Refuse a host that is named twice."""
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise RequestError(f"{what}: {host.name} is named twice. Name each host once, with all of its devices.")
        seen.add(host.name)


def _devices(text: str | None, what: str) -> tuple[int, ...]:
    if text is None:
        return (0,)
    if text.isdigit():
        count = int(text[:6])
        if not 1 <= count <= MOST or len(text) > 6:
            raise RequestError(f"{what}: a count of devices is 1 to {MOST}, got {text[:_SHOWN]}.")
        return tuple(range(count))
    return parse_ranges(text, what)
