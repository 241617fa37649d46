"""What npu-smi and nvidia-smi report of NPUs and GPUs; they are child processes that nobody waits for."""

from __future__ import annotations

import os
import signal

from mslaunch.shared.visible_devices import DEVICE_FILES, by_file, without_limits

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Devices = dict[int, dict[str, float]]

EVERY = 5.0  # seconds between two questions; npu-smi takes one or two of them
LONGEST = 20.0  # seconds after which a tool is ended
MOST_FAILURES = 3  # a tool that fails so often in a row is not asked again
MOST_OUTPUT = 1 << 20
_MB = 1 << 20
_GPU_VALUES = ("utilisation", "memory_used", "memory_total", "temperature", "power")


def read_nvidia_smi(text: str) -> Devices:
    """Read a line of numbers for each GPU; what a GPU cannot tell is no number."""
    devices: Devices = {}
    for line in text.splitlines():
        index, *cells = [cell.strip() for cell in line.split(",")]
        if index.isdigit() and len(cells) == len(_GPU_VALUES):
            values = devices[int(index)] = {}
            for name, cell in zip(_GPU_VALUES, cells):
                number = _number(cell)
                if number is not None:
                    values[name] = number * _MB if "memory" in name else number
    return devices


def read_npu_smi(text: str) -> Devices:
    """Read the table of `npu-smi info`, in which each chip has two lines of three cells.

    A chip is known by Phy-ID or Device where the table has such a column, else by the number of its NPU.
    """
    devices: Devices = {}
    first: list[list[str]] = []
    for line in text.splitlines():
        cells = [cell.replace("/", " / ").split() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 3 or not cells[0] or not cells[0][0].isdigit():
            first = []
        elif not first:
            first = cells
        else:
            numbers = cells[0]
            devices[int(numbers[1] if len(numbers) > 1 else first[0][0])] = _npu_values(first[2], cells[2])
            first = []
    return devices


def _npu_values(first: list[str], second: list[str]) -> dict[str, float]:
    """Power and temperature stand in the first line; use of AI cores, memory and on-chip memory in the second."""
    values: dict[str, float] = {}
    for name, cells in (("power", first[:1]), ("temperature", first[1:2]), ("utilisation", second[:1])):
        number = _number("".join(cells))
        if number is not None:
            values[name] = number
    for at in range(1, len(second) - 1):
        if second[at] == "/":  # chips with on-chip memory show 0 / 0 for the other one
            used, total = _number(second[at - 1]), _number(second[at + 1])
            if used is not None and total:
                values.update(memory_used=used * _MB, memory_total=total * _MB)
    return values


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # NA, [N/A], -
        return None
    return value if -1e6 < value < 1e9 else None


TOOLS: dict[str, tuple[tuple[str, ...], Callable[[str], Devices]]] = {
    "Ascend": (("npu-smi", "info"), read_npu_smi),
    "GPU": (
        (
            "nvidia-smi",
            "--query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw",
            "--format=csv,noheader,nounits",
        ),
        read_nvidia_smi,
    ),
}
"""The tool of each device target, and how its output is read."""


class DeviceMetrics:
    """Asks for the devices of a target from time to time; costs nothing where its tool is not there.

    `devices` are numbers as a process with these variables sees them; the tool knows those of the host.
    """

    def __init__(self, target: str | None, devices: set[int], environment: Mapping[str, str]) -> None:
        self._numbers = by_file(devices, DEVICE_FILES[target], environment) if target in DEVICE_FILES else {}
        self._argv, self._read = TOOLS.get(target or "", ((), read_nvidia_smi))
        self._path = _find(self._argv[0]) if self._argv and devices else None
        self._pid: int | None = None
        self._pipe = -1
        self._output = b""
        self._asked = 0.0
        self._failures = 0

    def look(self, now: float) -> Devices:
        """Return what has been answered since the look before; ask again where it is time to."""
        if self._path is None:
            return {}
        devices: Devices = {}
        if self._pid is not None:
            devices = self._receive(now)
        elif now - self._asked >= EVERY:
            self._ask(self._path, now)
        return {self._numbers[file]: values for file, values in devices.items() if file in self._numbers and values}

    def close(self) -> None:
        """Ask no more, and end a tool that has not answered yet."""
        self._path = None
        if self._pid is not None:
            self._give_up()

    def _ask(self, path: str, now: float) -> None:
        self._asked, self._output = now, b""
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, end, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            self._pid = os.posix_spawn(
                path,
                self._argv,
                without_limits(os.environ),
                file_actions=files,
                setpgroup=0,
                setsigdef=[signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
        except OSError:
            self._path = None
            os.close(self._pipe)
        finally:
            os.close(end)

    def _receive(self, now: float) -> Devices:
        """Take what has come; the end of the output is the end of the answer."""
        try:
            while data := os.read(self._pipe, 1 << 16):
                self._output += data
                if len(self._output) > MOST_OUTPUT:
                    return self._give_up()
        except BlockingIOError:
            return self._give_up() if now - self._asked > LONGEST else {}
        self._end()
        devices = self._read(self._output.decode("utf-8", "replace"))
        if devices:
            self._failures = 0
        else:
            self._count_failure()
        return devices

    def _give_up(self) -> Devices:
        """End a tool that hangs, and what it has started; its agent reaps it as it does all its children."""
        try:
            if self._pid is not None:
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # it is a child of ours still
                os.killpg(self._pid, signal.SIGKILL)
        except OSError:
            pass
        self._end()
        self._count_failure()
        return {}

    def _count_failure(self) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._path = None

    def _end(self) -> None:
        os.close(self._pipe)
        self._pid = None


def _find(name: str) -> str | None:
    for folder in os.get_exec_path():
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
