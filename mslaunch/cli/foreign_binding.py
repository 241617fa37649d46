"""msrun's --bind_core and --bind_numa: true, false, maps of devices, or a file of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import RequestError

SCHEDULER = "scheduler"
_FORM = "bind_config"
_CPU_MODES = ("cpu", "numa", "none")
_MEMORY_MODES = ("numa", "none")


def bind_core(value: str) -> Sequence[str]:
    """True, False, or which cores each device's rank gets: {"device0": ["0-9"]}."""
    if value.lower() in ("true", "false"):
        return ("--bind-cores" if value.lower() == "true" else "--no-bind-cores",)
    fix = 'write True, False, or which cores each device gets: {"device0": ["0-9"], "device1": ["10-19"]}'
    return (_option("--core-map", _lists("--bind_core", value, _parse(value, "--bind_core", fix), fix)),)


def bind_numa(value: str) -> Sequence[str]:
    """True, False, which nodes each device's rank gets, or a file with bind_config, bind_cpu and bind_memory."""
    if value.lower() in ("true", "false"):
        return ("--numa" if value.lower() == "true" else "--no-numa",)
    fix = 'write True, False, which NUMA nodes each device gets: {"device0": ["0"]}, or a JSON file'
    is_file = value.lower().endswith(".json") or Path(value).is_file()
    text = _read(value) if is_file else value
    config = _parse(text, f"--bind_numa={value}" if is_file else "--bind_numa", fix)
    if _FORM not in config:
        nodes = _lists("--bind_numa", value, config, fix)
        return (_option("--node-map", nodes), _option("--memory-map", nodes))
    words = tuple(_from_config(config))
    if not is_file:
        return words
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (*words, f"--env=MSRUN_BIND_FILE={Path(value).resolve()}", f"--env=MSRUN_BIND_FILE_HASH={digest}")


def remark(value: str) -> str:
    """Say what of a map is left out."""
    return f"the scheduler of {value} is not bound: it does nothing while ranks compute" if SCHEDULER in value else ""


def _from_config(config: Mapping[str, Any]) -> Iterator[str]:
    """Return what msrun 2.10 does with the form that has bind_config."""
    form = _mapping(config, _FORM)
    cpu = _mode(form, "bind_cpu_mode", _CPU_MODES)
    if cpu == "cpu":
        cores = {device: _mapping(_mapping(config, "bind_cpu"), device).get("main") for device in config["bind_cpu"]}
        yield _option("--core-map", _numbers("bind_cpu", cores))
    if cpu == "numa":
        yield _option("--node-map", _numbers("bind_cpu", _mapping(config, "bind_cpu")))
    if _mode(form, "bind_memory_mode", _MEMORY_MODES) == "numa":
        yield _option("--memory-map", _numbers("bind_memory", _mapping(config, "bind_memory")))


def _option(name: str, numbers: Mapping[str, str]) -> str:
    return f"{name}={json.dumps(numbers)}"


def _mode(form: Mapping[str, Any], key: str, modes: Sequence[str]) -> str:
    mode = str(form.get(key, "none")).lower()
    if mode not in modes:
        raise RequestError(f"--bind_numa: {key} is {mode!r}. Write {', '.join(modes[:-1])} or {modes[-1]}.")
    return mode


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise RequestError(f"--bind_numa: {key} is not a JSON object: {json.dumps(found)[:80]}.")
    return found


def _numbers(key: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Check numbers that are written as text or as one number; a device without any is left out."""
    numbers: dict[str, str] = {}
    for device, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
            raise RequestError(f'--bind_numa: {key}, {device}: expected numbers such as "0-9", got {value!r}.')
        if value not in (None, "") and device != SCHEDULER:
            numbers[_device(device)] = str(value).replace(" ", "")
    return numbers


def _device(key: str) -> str:
    return f"device{key}" if key.isdigit() else key


def _lists(option: str, value: str, config: Mapping[str, Any], fix: str) -> dict[str, str]:
    """Check the older form: a list of texts for each device."""
    for numbers in config.values():
        if not isinstance(numbers, list) or not all(isinstance(number, str) for number in numbers):
            raise RequestError(f"{option}={value}: {fix}.")
    joined = {device: ",".join(numbers) for device, numbers in config.items() if device != SCHEDULER}
    return {_device(device): numbers.replace(" ", "") for device, numbers in joined.items()}


def _parse(text: str, where: str, fix: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except Unreadable:
        found = None
    if not isinstance(found, dict):
        raise RequestError(f"{where}: cannot read {text[:80]!r}; {fix}.")
    return found


def _read(name: str) -> str:
    try:
        return read_text(Path(name))
    except (OSError, Unreadable) as error:
        why = getattr(error, "strerror", None) or error
        raise RequestError(f"--bind_numa={name}: cannot read the file: {why}.") from None
