"""The fields of rank tables: what a text, a number, an address and a count must look like."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from mslaunch.ranktable.findings import Finding, Path


def check_status(raw: dict[str, Any]) -> Iterator[Finding]:
    status = raw.get("status")
    if status == "initializing":
        what = "status is 'initializing': HCCL waits up to 30 minutes for it to change"
        yield Finding(("status",), what, 'Write "completed".', severity="warning")
    elif status != "completed":
        code = "EI0014" if "status" in raw else "EI0017"
        yield Finding(("status",), f"status must be 'completed', got {status!r}", 'Write "completed".', code)


def check_count(raw: dict[str, Any], name: str, real: int, path: Path = ()) -> Iterator[Finding]:
    if raw.get(name) != str(real):
        code = "EI0004" if name in raw else "EI0017"
        yield Finding((*path, name), f"{name} must be '{real}', got {raw.get(name)!r}", f'Write "{real}".', code)


def check_text(
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


def check_number(item: dict[str, Any], path: Path, name: str, seen: dict[Any, Path]) -> Iterator[Finding]:
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


def check_address(device: dict[str, Any], path: Path, needed: bool, seen: dict[Any, Path]) -> Iterator[Finding]:
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


def is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def check_families(addresses: dict[Any, Path]) -> Iterator[Finding]:
    families = {address.version for address in addresses}
    if len(families) > 1:
        first = next(iter(addresses)).version
        place = next(path for address, path in addresses.items() if address.version != first)
        yield Finding(place, "IPv4 and IPv6 addresses are mixed", "Use one family for all devices.", "EI0014")


def check_port(value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(value, str) or not value.isdecimal() or not 1 <= int(value[:9]) <= 65535:
        yield Finding(path, f"a port is 1 to 65535 in quotes, got {value!r}", 'Write for example "16666".', "EI0014")


_VERSIONS = {"super_pod_list": "1.2", "server_list": "1.0", "rank_list": "2.0"}
"""The version of a table, by the list that it has; one with group_list needs none."""


def absent_version(raw: dict[str, Any]) -> tuple[str, str] | None:
    """Return the version that a table without one needs, and what is wrong with it; None where nothing is."""
    if "version" in raw or "group_list" in raw:
        return None
    for name, version in _VERSIONS.items():
        if name in raw:
            return version, f"version is missing: a table with {name} is of version {version}"
    return None


def missing(path: Path, name: str, what: str) -> Finding:
    return Finding((*path, name), f"{name} must be {what}", "Start from a sample: mslaunch examples list.", "EI0017")


def objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
