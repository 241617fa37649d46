"""Which NPUs and GPUs a process sees, by the variables that limit them, and which device file each of them has.

A process counts the devices that it sees from 0; so do DEVICE_ID, --devices and every other number of a device here.
"""

from __future__ import annotations

import os
import re
from itertools import takewhile

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from mslaunch.shared import messages

    Value = TypeVar("Value")
    Seen = dict[int, "int | None"]
    """The devices that a process sees: their numbers there, and of their device files; None where that is unknown."""

DEVICE_FILES = {"Ascend": "davinci", "GPU": "nvidia"}  # how the device files of each target begin; a number follows
VARIABLES = {"davinci": "ASCEND_RT_VISIBLE_DEVICES", "nvidia": "CUDA_VISIBLE_DEVICES"}
"""The variable that limits the devices of each kind."""
_GRANTED = {"nvidia": ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")}
"""Where Slurm lists the devices of a job by their numbers on the host; the first that is set counts."""
_NUMBER = re.compile(r"[0-9]{1,5}")
ASK_SECONDS = 5.0
_LONGEST = 60
_MOST = 10_000


def visible_devices(
    stem: str, there: Sequence[int], environment: Mapping[str, str], ask: Callable[[list[str]], str]
) -> Seen:
    """Return the devices that a process with these variables sees of those that are there.

    An entry that names no device ends the list, and one that stands twice empties it, as CUDA and CANN have it.
    `ask` runs nvidia-smi, where GPUs are named by UUIDs.
    """
    value = environment.get(VARIABLES[stem])
    if value is None or not there:
        return {number: number for number in there}
    entries = value.split(",")
    if stem == "nvidia":  # CANN takes a blank for the end of the list
        entries = [entry.strip() for entry in entries]
    if entries[0].startswith(("GPU-", "MIG-")):
        return dict(enumerate(_by_uuid(entries, ask)))
    granted = next((environment[name] for name in _GRANTED.get(stem, ()) if environment.get(name)), "")
    numbers = [int(number) for number in granted.split(",") if _NUMBER.fullmatch(number)]
    return dict(enumerate(_by_number(entries, there, numbers)))


def _by_number(entries: list[str], there: Sequence[int], granted: list[int]) -> list[int]:
    numbers: list[int] = []
    for entry in entries:
        if not _NUMBER.fullmatch(entry):
            break
        if int(entry) in numbers:
            return []
        numbers.append(int(entry))
    # Numbers are those of the device files, or count what a container or Slurm's cgroup has left of them.
    places = granted or there
    by_place = [places[number] for number in takewhile(lambda number: number < len(places), numbers)]
    by_number = list(takewhile(lambda number: number in there, numbers))
    if granted and len(by_place) == len(numbers):
        return by_place
    return by_number if len(by_number) >= len(by_place) else by_place


def _by_uuid(entries: list[str], ask: Callable[[list[str]], str]) -> list[int | None]:
    """A part of a GPU (MIG) has no device file that is its alone; a UUID may be given by its beginning."""
    listed = [entry for entry in entries if entry]
    if len(set(listed)) < len(listed):
        return []
    uuids = gpu_field("uuid", ask) if any(entry.startswith("GPU-") for entry in listed) else {}
    devices: list[int | None] = []
    for entry in entries:
        if not entry.startswith(("GPU-", "MIG-")):
            break
        matches = [number for number, uuid in uuids.items() if uuid.startswith(entry)]
        devices.append(matches[0] if len(matches) == 1 else None)
    return devices


def gpu_field(name: str, ask: Callable[[list[str]], str]) -> dict[int, str]:
    """Ask nvidia-smi for a field of every GPU: its lines are such as `0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`."""
    answer = ask(["nvidia-smi", f"--query-gpu=index,{name}", "--format=csv,noheader"])
    pairs = (line.split(",") for line in answer.splitlines() if line.count(",") == 1)
    return {int(index): value.strip() for index, value in pairs if _NUMBER.fullmatch(index.strip())}


def limit(stem: str, environment: Mapping[str, str]) -> str:
    """Say what limits the devices, as it would be typed; nothing where nothing does."""
    name = VARIABLES[stem]
    value = environment.get(name)
    if value is None:
        return ""
    if len(value) > _LONGEST:
        value = f"{value[:_LONGEST]}..."
    if not value.isprintable():
        value = ascii(value)
    return f"{name}={value}"


def seen_here(stem: str, environment: Mapping[str, str], folder: str = "/dev") -> Seen:
    """Return the devices of this machine that a process with these variables sees."""
    return visible_devices(stem, device_numbers(stem, folder), environment, ask_tool)


def as_seen(
    by_host: dict[int, Value], stem: str, environment: Mapping[str, str], ask: Callable[[list[str]], str]
) -> dict[int, Value]:
    """Give what is known of devices by the numbers of the host the numbers that a process sees."""
    if VARIABLES[stem] not in environment:
        return by_host
    seen = visible_devices(stem, device_numbers(stem) or sorted(by_host), environment, ask)
    return {number: by_host[file] for number, file in seen.items() if file in by_host}


def by_file(devices: Iterable[int], stem: str, environment: Mapping[str, str]) -> dict[int, int]:
    """Return these devices by the numbers of the host; without device files the variable alone tells."""
    if VARIABLES[stem] not in environment:
        return {device: device for device in devices}
    seen = visible_devices(stem, device_numbers(stem) or range(_MOST), environment, ask_tool)
    return {file: device for device in devices if (file := seen.get(device)) is not None}


def device_numbers(stem: str, folder: str = "/dev") -> list[int]:
    """The numbers of the device files of one kind, in order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    matches = (re.fullmatch(rf"{stem}({_NUMBER.pattern})", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def environment_of_ranks(order: messages.RunOrder) -> dict[str, str]:
    """The variables that the ranks of this host have, as far as they limit devices: the same for all of them."""
    own = next((process["env"] for process in order["processes"] if process["rank"] is not None), {})
    return {**os.environ, **order["env"], **order["secrets"], **own}


def without_limits(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a vendor's tool, which is asked about all devices of the host."""
    return {name: value for name, value in environment.items() if name not in VARIABLES.values()}


def ask_tool(argv: list[str]) -> str:
    """Run a vendor's tool; nothing where it is not there, fails or hangs."""
    import subprocess

    env = without_limits(os.environ)
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=ASK_SECONDS, stdin=subprocess.DEVNULL, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
