"""What a host has to offer, found out before anything is started there."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import time
import zlib

from mslaunch.shared.device_locks import holders
from mslaunch.shared.visible_devices import (
    DEVICE_FILES,
    as_seen,
    ask_tool,
    device_numbers,
    gpu_field,
    limit,
    seen_here,
)

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from mslaunch.shared import messages
    from mslaunch.shared.visible_devices import Seen

    Ask = Callable[[list[str]], str]

_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_NUMBER = "[0-9]{1,5}"


def numa_facts(environment: Mapping[str, str], root: str = "/", ask: Ask = ask_tool) -> messages.NumaAnswer:
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
    return _with_nodes(root, gpu_field("pci.bus_id", ask)) or _with_nodes(root, _driver_buses(root))


def npu_nodes(root: str, nodes: dict[int, list[int]], ask: Ask) -> dict[int, int]:
    """The node of every Ascend device, by its number: from its PCIe bus, else from its CPU affinity."""
    table = ask(["npu-smi", "info", "-m"])
    rows = re.findall(rf"^\s*({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s", table, re.MULTILINE)
    chips = {int(device): int(npu) for npu, _, device in rows}
    boards = {}
    for npu in sorted(set(chips.values())):
        board = ask(["npu-smi", "info", "-t", "board", "-i", str(npu)])
        boards[npu] = "".join(re.findall(rf"PCIe Bus Info\s*:\s*({_BUS})", board)[:1])
    device_nodes = _with_nodes(root, {device: boards[npu] for device, npu in chips.items()})
    if not chips or len(device_nodes) < len(chips):
        table = ask(["npu-smi", "info", "-t", "topo"])
        for device, cores in re.findall(rf"^\s*NPU({_NUMBER})\s.*\s([0-9,-]+)\s*$", table, re.MULTILINE):
            near = [node for node, own in nodes.items() if set(own) & set(parse_list(cores))]
            if len(near) == 1:
                device_nodes.setdefault(int(device), near[0])
    return device_nodes


def parse_list(text: str) -> list[int]:
    """Read the kernel's lists: `0-3,8`."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not re.fullmatch(_NUMBER, first) or (last and not re.fullmatch(_NUMBER, last)):
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
        minor = re.search(rf"Device Minor:\s*({_NUMBER})", _read(os.path.join(folder, bus, "information")))
        if minor:
            devices[int(minor[1])] = bus
    return devices


def _with_nodes(root: str, buses: dict[int, str]) -> dict[int, int]:
    nodes = {}
    for device, bus in buses.items():
        if not re.fullmatch(_BUS, bus):
            continue
        domain, _, rest = bus.lower().partition(":")
        text = _read(os.path.join(root, "sys/bus/pci/devices", f"{int(domain, 16):04x}:{rest}", "numa_node")).strip()
        if re.fullmatch(_NUMBER, text):  # -1: the machine does not say
            nodes[device] = int(text)
    return nodes


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def facts(order: messages.ProbeOrder) -> dict[str, Any]:
    """Answer everything that planning and checking ask of a host."""
    clock, began = time.time(), time.monotonic()
    environment = {**os.environ, **order["env"]}
    seen = {target: seen_here(stem, environment) for target, stem in DEVICE_FILES.items()}
    answers = {
        "python": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "mindspore": mindspore_version(),
        "cores": sorted(os.sched_getaffinity(0)),
        "devices": {target: list(numbers) for target, numbers in seen.items()},
        "limits": _limits(seen, environment),
        "busy": _busy_devices(seen),
        "held": _held_devices(seen, environment),
        "gpus": _allotted(order["device_variables"]),
        "shared": _read(order["nonce"]) == order["nonce_text"],
        "script": checksum(order["script"]),
        "numa": numa_facts(environment) if order["numa"] else None,
        **_room(order["run_dir"]),
    }
    return {**answers, "clock": clock, "took": time.monotonic() - began}


def _limits(seen: Mapping[str, Seen], environment: Mapping[str, str]) -> dict[str, messages.DeviceLimit]:
    """What limits the devices of each target that has some, where anything does."""
    limits: dict[str, messages.DeviceLimit] = {}
    for target, numbers in seen.items():
        by, of = limit(DEVICE_FILES[target], environment), len(device_numbers(DEVICE_FILES[target]))
        if by and of:
            limits[target] = {"by": by, "of": of, "files": list(numbers.values())}
    return limits


def mindspore_version() -> str | None:
    """Look MindSpore's version up beside its package; importing it would take seconds."""
    import site

    if sys.flags.no_site:
        site.main()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            metadata = re.fullmatch(r"mindspore(?:[-_](?:ascend|gpu))?-([\w.+]+)\.dist-info", name)
            if metadata and os.path.isdir(os.path.join(folder, "mindspore")):
                return metadata[1]
    return None


def _allotted(variables: tuple[str, ...]) -> list[int]:
    """The devices that a batch system has given this host, by the first of its variables that is set."""
    listed = next((os.environ[name] for name in variables if os.environ.get(name)), "")
    return [int(number) for number in listed.split(",") if number.isdigit()]


def _busy_devices(seen: Mapping[str, Seen]) -> dict[str, str]:
    """Which devices have their files open, and by whom; what may not be looked at is not known."""
    files = {
        f"/dev/{DEVICE_FILES[target]}{file}": f"{DEVICE_FILES[target]}{number}"
        for target, numbers in seen.items()
        for number, file in numbers.items()
        if file is not None
    }
    if not files:
        return {}
    busy: dict[str, str] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = os.readlink(f"/proc/{pid}/fd/{fd}")
                if path in files:
                    with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
                        busy[files[path]] = f"{file.read().strip()} (pid {pid})"
        except OSError:
            continue
    return busy


def _held_devices(seen: Mapping[str, Seen], environment: Mapping[str, str]) -> dict[str, str]:
    return {
        f"{stem}{device}": who
        for target, stem in DEVICE_FILES.items()
        for device, who in holders(stem, seen[target], environment).items()
    }


def checksum(path: str) -> str | None:
    """Tell a file's content from that of an older copy; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read()
        return f"{len(content)}-{zlib.crc32(content):08x}"
    except OSError:
        return None


def _room(run_dir: str) -> dict[str, Any]:
    """How much disk there is for the run, and why its folder could not be made, if so."""
    place = os.path.dirname(run_dir)
    while not os.path.exists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    trouble = None
    try:
        disk = os.statvfs(place)
    except OSError as error:
        return {"free": 0, "unwritable": f"{place} cannot be used: {error.strerror}"}
    if not os.path.isdir(place):
        trouble = f"{place} is not a folder"
    elif not os.access(place, os.W_OK | os.X_OK):
        trouble = f"{place} cannot be written"
    return {"free": disk.f_bavail * disk.f_frsize, "unwritable": trouble}


class OpenPort:
    """A port that is held open while the other hosts try to reach it."""

    def __init__(self, port: int | None, choices: list[int]) -> None:
        self.number: int | None = None
        self.why = ""
        for number in [port] if port else choices:
            if not port and not is_free(number + 1):  # MASTER_PORT, where a store of rank 0 may listen
                continue
            try:
                self._socket = _listening(number)
            except OSError as error:
                self.why = os.strerror(error.errno or errno.EADDRINUSE)
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    return
                continue
            self.number = number
            break

    def close(self) -> None:
        if self.number is not None:
            self._socket.close()


def _listening(port: int) -> socket.socket:
    """Listen on a port at all addresses, those of IPv6 included where this machine has them."""
    for family in (socket.AF_INET6, socket.AF_INET):
        sock = None
        try:
            sock = socket.socket(family)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(("", port))
            sock.listen(1024)
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            if family == socket.AF_INET or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    raise AssertionError  # both families have been tried


def is_free(port: int) -> bool:
    """Tell whether a port can be listened on here."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


def reach(address: str, port: int, seconds: float) -> str | None:
    """Connect to a port as a rank would; return why that does not work."""
    try:
        socket.create_connection((address, port), seconds).close()
    except OSError as error:
        return str(error.strerror or error)
    return None
