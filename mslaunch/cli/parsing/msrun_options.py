"""The options of msrun and torchrun, as tables: what each means here, why it means nothing, or what to do instead."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import RequestError

SCHEDULER = "scheduler"
_FORM = "bind_config"


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
    text = value
    if is_file:
        try:
            text = read_text(Path(value))
        except (OSError, Unreadable) as error:
            why = getattr(error, "strerror", None) or error
            raise RequestError(f"--bind_numa={value}: cannot read the file: {why}.") from None
    config = _parse(text, f"--bind_numa={value}" if is_file else "--bind_numa", fix)
    if _FORM not in config:
        nodes = _lists("--bind_numa", value, config, fix)
        return (_option("--node-map", nodes), _option("--memory-map", nodes))
    options = tuple(_from_config(config))
    if not is_file:
        return options
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (*options, f"--env=MSRUN_BIND_FILE={Path(value).resolve()}", f"--env=MSRUN_BIND_FILE_HASH={digest}")


def remark(value: str) -> str:
    """Say what of a map is left out."""
    return f"the scheduler of {value} is not bound: it does nothing while ranks compute" if SCHEDULER in value else ""


def _from_config(config: Mapping[str, Any]) -> Iterator[str]:
    """Return what msrun 2.10 does with the form that has bind_config."""
    form = _mapping(config, _FORM)
    cpu = _mode(form, "bind_cpu_mode", ("cpu", "numa", "none"))
    if cpu == "cpu":
        cores = {device: _mapping(_mapping(config, "bind_cpu"), device).get("main") for device in config["bind_cpu"]}
        yield _option("--core-map", _numbers("bind_cpu", cores))
    if cpu == "numa":
        yield _option("--node-map", _numbers("bind_cpu", _mapping(config, "bind_cpu")))
    if _mode(form, "bind_memory_mode", ("numa", "none")) == "numa":
        yield _option("--memory-map", _numbers("bind_memory", _mapping(config, "bind_memory")))


def _option(name: str, numbers: Mapping[str, str]) -> str:
    return f"{name}={json.dumps(numbers)}"


def _mode(form: Mapping[str, Any], key: str, modes: Sequence[str]) -> str:
    mode = str(form.get(key, "none")).lower()
    if mode not in modes:
        raise RequestError(f"--bind_numa: {key} is {mode!r}. Write {', '.join(modes[:-1])} or {modes[-1]}.")
    return mode


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    mapping = values.get(key) or {}
    if not isinstance(mapping, dict):
        raise RequestError(f"--bind_numa: {key} is not a JSON object: {json.dumps(mapping)[:80]}.")
    return mapping


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
    joined = {}
    for device, numbers in config.items():
        if not isinstance(numbers, list) or not all(isinstance(number, str) for number in numbers):
            raise RequestError(f"{option}={value}: {fix}.")
        if device != SCHEDULER:
            joined[_device(device)] = ",".join(numbers).replace(" ", "")
    return joined


def _parse(text: str, where: str, fix: str) -> dict[str, Any]:
    try:
        config = parse_json(text)
    except Unreadable:
        config = None
    if not isinstance(config, dict):
        raise RequestError(f"{where}: cannot read {text[:80]!r}; {fix}.")
    return config


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """One option of another launcher."""

    means: Callable[[str], Sequence[str]] | None = None  # from its value to words of mslaunch's own
    why: str = ""  # why it means nothing here; empty where there is nothing to say
    instead: str = ""  # what to do instead, where it cannot be done
    as_here: tuple[str, ...] = ()  # values that ask for what happens here anyway
    takes_value: bool = True
    remark: Callable[[str], str] | None = None  # what to say of its value, where that is not done as a whole


Table = Mapping[str, ForeignOption]


@dataclass(frozen=True, slots=True)
class Translated:
    """A command line in mslaunch's own words, and what is to be said about it."""

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


def _as(option: str) -> ForeignOption:
    return ForeignOption(lambda value: (f"{option}={value}",))


def _variable(name: str) -> ForeignOption:
    return ForeignOption(lambda value: (f"--env={name}={value}",))


def _workers(value: str) -> Sequence[str]:
    """A number, or torchrun's words for as many as there are devices or cores."""
    if value.isdigit():
        return (f"--local_worker_num={value}",)
    if value not in ("auto", "gpu", "cpu", "npu"):
        raise RequestError(f"--nproc-per-node={value}: write a number, auto, gpu or cpu.")
    from mslaunch.launcher.facts import find_devices

    cores, devices = len(os.sched_getaffinity(0)), len(find_devices(None).numbers)
    if value in ("gpu", "npu") and not devices:
        raise RequestError(f"--nproc-per-node={value}: this machine has no GPU or NPU. Write a number.")
    return (f"--local_worker_num={cores if value == 'cpu' else devices or cores}",)


_ONE_LOG = "rank_R/log.txt has output and errors of every rank"
_SCHEDULER = "ranks find each other through MindSpore's scheduler"
_TEE = ForeignOption(lambda value: ("--tail=none" if value == "0" else "--tail=all",))
_NODE_RANK = ForeignOption(lambda value: (f"--node-rank={value}",), as_here=("-1",))

MSRUN: Table = {
    "worker_num": _as("--workers"),
    "local_worker_num": _as("--local_worker_num"),
    "master_addr": _as("--master"),
    "master_port": _as("--master-port"),
    "node_rank": _NODE_RANK,
    "log_dir": _as("--runs-dir"),
    "join": ForeignOption(lambda value: () if value.lower() in ("true", "1", "yes", "on") else ("--detach",)),
    "cluster_time_out": _variable("MS_TOPO_TIMEOUT"),
    "bind_core": ForeignOption(bind_core, remark=remark),
    "bind_numa": ForeignOption(bind_numa, remark=remark),
    "sim_level": ForeignOption(lambda value: (f"--env=MS_SIMULATION_LEVEL={value}",), as_here=("-1",)),
    "sim_rank_id": ForeignOption(
        instead="every rank is started. One alone: MS_SIMULATION_LEVEL=0 RANK_SIZE=8 RANK_ID=3 python train.py",
        as_here=("-1",),
    ),
    "rank_table_file": _as("--rank-table"),
    "worker_log_name": ForeignOption(why="the log of rank R is rank_R/log.txt"),
    "tail_worker_log": ForeignOption(lambda value: (f"--tail={'all' if value == '-1' else value}",)),
}
"""As in MindSpore 2.10, by name without dashes."""

TORCHRUN: Table = {
    "nnodes": ForeignOption(lambda value: (f"--nnodes={value}",), as_here=("1", "1:1")),
    "nproc_per_node": ForeignOption(_workers),
    "standalone": ForeignOption(takes_value=False),
    "max_restarts": _as("--max-restarts"),
    "rdzv_backend": ForeignOption(why=_SCHEDULER),
    "rdzv_endpoint": _as("--master"),
    "rdzv_id": ForeignOption(why=_SCHEDULER),
    "rdzv_conf": ForeignOption(why=_SCHEDULER),
    "monitor_interval": ForeignOption(why="mslaunch is told when a process ends, and need not look"),
    "start_method": ForeignOption(why="a rank is a process of its own", as_here=("spawn",)),
    "event_log_handler": ForeignOption(why="events.jsonl has all events", as_here=("null",)),
    "role": ForeignOption(why="all ranks have the same role", as_here=("default", "default_role")),
    "no_python": ForeignOption(takes_value=False),
    "run_path": ForeignOption(instead="name the script as it is", takes_value=False),
    "log_dir": _as("--runs-dir"),
    "r": ForeignOption(why=_ONE_LOG, as_here=("0",)),
    "redirects": ForeignOption(why=_ONE_LOG, as_here=("0",)),
    "t": _TEE,
    "tee": _TEE,
    "local_ranks_filter": _as("--tail"),
    "duplicate_stdout_filters": ForeignOption(why=_ONE_LOG),
    "duplicate_stderr_filters": ForeignOption(why=_ONE_LOG),
    "node_rank": _NODE_RANK,
    "master_addr": _as("--master"),
    "master_port": _variable("MASTER_PORT"),
    "local_addr": ForeignOption(why=_SCHEDULER),
    "logs_specs": ForeignOption(why=_ONE_LOG),
    "numa_binding": ForeignOption(lambda _: ("--numa",)),
    "signals_to_handle": ForeignOption(why="SIGTERM, SIGINT and SIGHUP end the job, and all of its ranks"),
    "virtual_local_rank": ForeignOption(
        instead="each rank sees all devices, and DEVICE_ID names its own", takes_value=False
    ),
}
"""As in PyTorch 2.13, by name without leading dashes, with underscores."""


def is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "--")


def translate(argv: Sequence[str], table: Table, ours: Mapping[str, bool], ours_first: bool) -> Translated:
    """Put what another launcher's options mean in their place, up to the program; `ours`: our options, with a value?"""
    left, done = list(argv), list[str]()
    notes: list[str] = []
    while left and is_option(left[0]):
        word = left.pop(0)
        name, equals, value = word.partition("=")
        row = table.get(name.lstrip("-").replace("-", "_"))
        if row is None or (ours_first and name in ours):
            done.append(word)
            done += [left.pop(0)] if ours.get(word) and left else []
            continue
        if row.takes_value and not equals:
            if not left:
                raise RequestError(f"{name}: its value is missing.")
            value = left.pop(0)
        if value in row.as_here:
            continue
        if row.instead:
            raise RequestError(f"{name}{f'={value}' if value else ''}: {row.instead}.")
        if row.why:
            notes.append(f"{name}={value} has no meaning here: {row.why}")
        for own in row.means(value) if row.means else ():
            if own.partition("=")[0] in ours:
                done.append(own)
            else:
                notes.append(f"{name} is left out: it has no meaning for this verb")
        if row.remark and (text := row.remark(value)):
            notes.append(text)
    return Translated((*done, *left), tuple(notes))
