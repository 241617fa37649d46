"""Asking an Ascend host about its devices: what to ask is here, asking is elsewhere, reading is in generate."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mslaunch.errors import NotReadyError
from mslaunch.ranktable.generate import parse_hccn_conf, parse_hccn_tool, parse_spod_info
from mslaunch.ranktable.model import Device

Ask = Callable[[Sequence[str]], str | None]
"""Runs a command on the host and returns what it printed, or None where it cannot be run."""

HCCN_CONF = "/etc/hccn.conf"
_DAVINCI = re.compile(r"/dev/davinci(\d{1,6})$", re.MULTILINE)


def probe(ask: Ask, host: str) -> tuple[Device, ...]:
    """Find the devices of a host with their addresses and, on a super pod, their SDIDs."""
    addresses = parse_hccn_conf(ask(("cat", HCCN_CONF)) or "")
    ids = sorted(addresses) or sorted(
        int(found) for found in _DAVINCI.findall(ask(("sh", "-c", "ls /dev/davinci*")) or "")
    )
    if not ids:
        raise NotReadyError(
            f"{host}: no Ascend device was found: {HCCN_CONF} names none and /dev has no davinci. "
            f"Run this on an Ascend host, or name devices with --hosts."
        )
    return tuple(_device(ask, device, addresses.get(device)) for device in ids)


def _device(ask: Ask, device: int, address: str | None) -> Device:
    address = address or parse_hccn_tool(ask(("hccn_tool", "-i", str(device), "-ip", "-g")) or "")
    sdid = parse_spod_info(ask(("npu-smi", "info", "-t", "spod-info", "-i", str(device), "-c", "0")) or "")
    return Device(device, device_ip=address, super_device_id=sdid)
