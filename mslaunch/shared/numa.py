"""Which cores belong to which NUMA node of a host, and on which node each of its NPUs and GPUs is."""

from __future__ import annotations

import os
import re

from mslaunch.shared.visible_devices import DEVICE_FILES, as_seen, ask_tool

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mslaunch.shared import messages

    Ask = Callable[[list[str]], str]

_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_NUMBER = re.compile(r"[0-9]{1,5}")
_BOARD_BUS = re.compile(rf"PCIe Bus Info\s*:\s*({_BUS.pattern})")
_CHIP = re.compile(r"^\s*([0-9]{1,5})\s+([0-9]{1,5})\s+([0-9]{1,5})\s", re.MULTILINE)
_TOPO = re.compile(r"^\s*NPU([0-9]{1,5})\s.*\s([0-9,-]+)\s*$", re.MULTILINE)


def facts(environment: Mapping[str, str], root: str = "/", ask: Ask = ask_tool) -> messages.NumaAnswer:
    """Answer with the nodes and their cores, and with the devices and their node, as a process sees them."""
    nodes = node_cores(root)
    devices: dict[str, list[messages.NumaDevice]] = {}
    if nodes:
        on_host = {"Ascend": npu_nodes(root, nodes, ask), "GPU": gpu_nodes(root, ask)}
        for target, device_nodes in on_host.items():
            seen = as_seen(device_nodes, DEVICE_FILES[target], environment, ask)
            devices[target] = [{"device": device, "node": node} for device, node in sorted(seen.items())]
    return {
        "nodes": [{"node": node, "cores": cores} for node, cores in sorted(nodes.items())],
        "devices": devices,
    }


def node_cores(root: str) -> dict[int, list[int]]:
    """The cores of every node."""
    folder = os.path.join(root, "sys/devices/system/node")
    nodes: dict[int, list[int]] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return nodes
    for name in names:
        if re.fullmatch(r"node[0-9]{1,5}", name):
            cores = parse_list(_read(os.path.join(folder, name, "cpulist")))
            if cores:
                nodes[int(name[4:])] = cores
    return nodes


def gpu_nodes(root: str, ask: Ask) -> dict[int, int]:
    """The node of every NVIDIA device, by its number: from nvidia-smi, else from the driver itself."""
    table = ask(["nvidia-smi", "--query-gpu=index,pci.bus_id", "--format=csv,noheader"])
    return _with_nodes(root, parse_nvidia_smi(table) or _driver_buses(root))


def npu_nodes(root: str, nodes: dict[int, list[int]], ask: Ask) -> dict[int, int]:
    """The node of every Ascend device, by its number: from its PCIe bus, else from its CPU affinity."""
    table = ask(["npu-smi", "info", "-m"])
    chips = {int(device): int(npu) for npu, _, device in _CHIP.findall(table)}
    boards = {}
    for npu in sorted(set(chips.values())):
        boards[npu] = _BOARD_BUS.search(ask(["npu-smi", "info", "-t", "board", "-i", str(npu)]))
    buses = {device: bus[1] for device, npu in chips.items() if (bus := boards[npu])}
    device_nodes = _with_nodes(root, buses)
    if not chips or len(device_nodes) < len(chips):
        for device, cores in _TOPO.findall(ask(["npu-smi", "info", "-t", "topo"])):
            near = [node for node, own in nodes.items() if set(own) & set(parse_list(cores))]
            if len(near) == 1:
                device_nodes.setdefault(int(device), near[0])
    return device_nodes


def parse_nvidia_smi(text: str) -> dict[int, str]:
    """Read lines such as `0, 00000000:3B:00.0`."""
    pairs = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return {
        int(index): bus.strip()
        for index, bus in pairs
        if _NUMBER.fullmatch(index.strip()) and _BUS.fullmatch(bus.strip())
    }


def parse_list(text: str) -> list[int]:
    """Read the kernel's lists: `0-3,8`."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not _NUMBER.fullmatch(first) or (last and not _NUMBER.fullmatch(last)):
            return []
        cores += range(int(first), int(last or first) + 1)
    return cores


def _driver_buses(root: str) -> dict[int, str]:
    folder = os.path.join(root, "proc/driver/nvidia/gpus")
    try:
        buses = os.listdir(folder)
    except OSError:
        return {}
    devices = {}
    for bus in buses:
        minor = re.search(r"Device Minor:\s*([0-9]{1,5})", _read(os.path.join(folder, bus, "information")))
        if minor:
            devices[int(minor[1])] = bus
    return devices


def _with_nodes(root: str, buses: dict[int, str]) -> dict[int, int]:
    nodes = {}
    for device, bus in buses.items():
        domain, _, rest = bus.lower().partition(":")
        text = _read(os.path.join(root, "sys/bus/pci/devices", f"{int(domain, 16):04x}:{rest}", "numa_node")).strip()
        if _NUMBER.fullmatch(text):  # -1: the machine does not say
            nodes[device] = int(text)
    return nodes


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
