"""Making a rank table: from hosts, from a cluster's YAML, from what an Ascend host tells about itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mslaunch.errors import NotReadyError, RequestError
from mslaunch.hosts import Host
from mslaunch.ranges import MOST, parse_ranges
from mslaunch.ranktable.servers import Device, RankTable, Server, number

_RANGE = re.compile(r"\[\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)")
_ADDRESS = re.compile(r"^\s*address_(\d{1,6})\s*=\s*(\S+)\s*$", re.MULTILINE)
_TOOL = re.compile(r"^\s*ipaddr\s*:\s*(\S+)\s*$", re.MULTILINE)
"""What `hccn_tool -i N -ip -g` prints."""
_SDID = re.compile(r"^\s*SDID\s*:\s*(\d+)\s*$", re.MULTILINE)
"""What `npu-smi info -t spod-info -i ID -c CHIP` prints."""


def parse_device_num(text: str) -> tuple[int, ...]:
    """Read hccl_tools' half-open `[0,8)`, with blanks and any numbers, or a list."""
    match = _RANGE.fullmatch(text.strip())
    if not match:
        return parse_ranges(text, "--device_num")
    first, end = int(match[1]), int(match[2])
    if end <= first:
        raise RequestError(f'--device_num: {text!r} is empty. Write for example "[0,8)", which is 0 to 7.')
    return tuple(range(first, end))


def parse_hccn_conf(text: str) -> dict[int, str]:
    """Read the device addresses of /etc/hccn.conf: lines `address_0=192.168.100.101`."""
    return {int(number): address for number, address in _ADDRESS.findall(text)}


def from_hosts(hosts: Sequence[Host], addresses: Mapping[int, str] | None = None) -> RankTable:
    """Make a table of hosts and their devices; `addresses` are those of a single host's devices, by id."""
    if addresses and len(hosts) > 1:
        raise RequestError(
            "device addresses of one host do not fit several. Name them in a cluster's YAML (--cluster)."
        )
    missing = [device for host in hosts for device in host.devices if addresses and device not in addresses]
    if missing:
        devices = ", ".join(map(str, sorted(addresses or ())))
        raise RequestError(f"device {missing[0]} has no address: those of {devices} are known. Choose among them.")
    servers = [
        Server(host.address, tuple(Device(device, device_ip=(addresses or {}).get(device)) for device in host.devices))
        for host in hosts
    ]
    return RankTable("generated", "1.0", number(servers))


def from_cluster(raw: Any, name: str) -> RankTable:
    """Make a table of a cluster's YAML: `hosts: [{address: 10.0.0.1, devices: {0: 192.168.100.1}}]`."""
    hosts = raw.get("hosts") if isinstance(raw, dict) else None
    if not isinstance(hosts, list) or not hosts:
        raise RequestError(f"{name}: hosts must be a list, such as `hosts: [{{address: 10.0.0.1, devices: 8}}]`.")
    return RankTable(name, "1.0", number(_cluster_server(host, f"{name}: hosts[{i}]") for i, host in enumerate(hosts)))


def _cluster_server(host: Any, where: str) -> Server:
    if not isinstance(host, dict) or not host.get("address"):
        raise RequestError(f"{where}: address is missing. Write `address: 10.0.0.1`.")
    devices = host.get("devices")
    if isinstance(devices, int) and not isinstance(devices, bool) and 0 < devices <= MOST:
        made = tuple(Device(i) for i in range(devices))
    elif isinstance(devices, str):
        made = tuple(Device(i) for i in parse_ranges(devices, where))
    elif isinstance(devices, dict) and devices:
        made = tuple(_cluster_device(i, value, where) for i, value in devices.items())
    else:
        raise RequestError(
            f"{where}: devices must be a number up to {MOST}, a list such as 0-7, or `0: 192.168.100.1`, "
            f"got {devices!r}."
        )
    pod = host.get("super_pod")
    return Server(str(host["address"]), made, None if pod is None else str(pod))


def _cluster_device(device_id: Any, value: Any, where: str) -> Device:
    if not isinstance(device_id, int):
        raise RequestError(f"{where}: a device is named by its number, got {device_id!r}. Write `0: 192.168.100.1`.")
    if isinstance(value, dict):
        sdid = value.get("super_device_id")
        return Device(device_id, 0, value.get("device_ip"), None if sdid is None else str(sdid))
    return Device(device_id, device_ip=None if value is None else str(value))


def without_address(table: RankTable) -> dict[str, list[int]]:
    """Return the devices of each server that have no address."""
    missing: dict[str, list[int]] = {}
    for server in table.servers:
        numbers = [device.device_id for device in server.devices if not device.device_ip]
        if numbers:
            missing[server.server_id] = numbers
    return missing


def auto_name(table: RankTable) -> str:
    """The file name that hccl_tools would give: hccl_8p_01234567_10.0.0.1.json."""
    devices = "".join(str(device.device_id) for server in table.servers for device in server.devices)
    return f"hccl_{len(table.entries)}p_{devices}_{table.servers[0].server_id}.json"


Ask = Callable[[Sequence[str]], str | None]
"""Runs a command on the host and returns what it printed, or None where it cannot be run."""

HCCN_CONF = "/etc/hccn.conf"
_DAVINCI = re.compile(r"/dev/davinci(\d{1,6})$", re.MULTILINE)


def probe(ask: Ask, host: str) -> tuple[Device, ...]:
    """Find the devices of a host with their addresses and, on a super pod, their SDIDs."""
    addresses = parse_hccn_conf(ask(("cat", HCCN_CONF)) or "")
    ids = sorted(addresses) or sorted(map(int, _DAVINCI.findall(ask(("sh", "-c", "ls /dev/davinci*")) or "")))
    if not ids:
        raise NotReadyError(
            f"{host}: no Ascend device was found: {HCCN_CONF} names none and /dev has no davinci. "
            f"Run this on an Ascend host, or name devices with --hosts."
        )
    devices = []
    for device in ids:
        address = addresses.get(device)
        if address is None and (tool := _TOOL.search(ask(("hccn_tool", "-i", str(device), "-ip", "-g")) or "")):
            address = tool[1]
        pod = _SDID.search(ask(("npu-smi", "info", "-t", "spod-info", "-i", str(device), "-c", "0")) or "")
        devices.append(Device(device, device_ip=address, super_device_id=pod[1] if pod else None))
    return tuple(devices)
