"""A job's YAML: the script's keys, the launcher's `launch:` key, and the line on which each stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from mslaunch.documents.limits import Unreadable
from mslaunch.documents.typed import Mismatch
from mslaunch.errors import ConfigError, RequestError, did_you_mean
from mslaunch.settings.setting import READERS, setting, settings_in
from mslaunch.settings.value_types import Index, Ranks
from mslaunch.shared.secret_names import is_secret

_Path = tuple[str, ...]
LAUNCH_ONLY = {
    *("workers", "method", "runs_dir", "rank_table", "master_port", "max_restarts", "stall_timeout", "bind_cores")
}
"""Keys of launch that hardly any script has."""
TARGETS = {"ascend": "Ascend", "npu": "Ascend", "gpu": "GPU", "cuda": "GPU", "cpu": "CPU", "none": "None"}
"""What people call a device target, in small letters, and what MindSpore does."""


@dataclass(frozen=True)
class ScriptKeys:
    """The keys that launcher and script share; every other top-level key belongs to the script alone."""

    seed: Index | None = setting(None, "Seed of every rank; without one, ranks initialise differently.")
    device_target: Literal["None", "Ascend", "GPU", "CPU"] | None = setting(
        None, "Where the job runs; None or absent: Ascend, else GPU, else CPU, whichever is found."
    )
    context_mode: Literal["graph", "pynative"] | None = setting(None, "MindSpore's execution mode.")
    device_num: Ranks | None = setting(None, "How many ranks; absent or 1 is filled in from --workers.")
    device_id: Index | None = setting(None, "Device of a job of one rank.")


SCRIPT_KEYS = settings_in(ScriptKeys)


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One parsed YAML file."""

    name: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The script's keys."""
    launch: Mapping[str, Any] = field(default_factory=dict)
    """The launcher's keys, not yet validated."""
    documents: tuple[Any, ...] = ()
    """What follows the first document: help texts and choices of the model scaffolding."""
    lines: Mapping[_Path, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    text: str | None = None

    def where(self, *path: str) -> str:
        """Say where a key stands: `cfg.yaml:12`."""
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def parse_config(text: str, name: str) -> JobConfig:
    """Read 1 to 3 YAML documents; wrong keys and types are errors with file and line."""
    from mslaunch.documents.yaml_text import compose_yaml, construct_yaml

    try:
        nodes = compose_yaml(text)
        # Before the values are built: that takes the merge keys out of the nodes.
        lines = dict(_key_lines(nodes[0], name)) if nodes else {}
        documents = [construct_yaml(node) for node in nodes]
    except Unreadable as error:
        raise ConfigError([f"{error.where(name)}: not valid YAML: {error}."]) from None
    first = documents[0] if documents else {}
    if first is None:
        first = {}
    if not isinstance(first, dict) or not all(isinstance(key, str) for key in first):
        raise ConfigError([f"{name}:1: the file must be a mapping of names to values, such as `seed: 1`."])
    launch = first.pop("launch", None)
    config = _with_target(JobConfig(name, first, launch or {}, tuple(documents[1:]), lines))
    if not isinstance(config.launch, dict) or not all(isinstance(key, str) for key in config.launch):
        raise ConfigError([f"{config.where('launch')}: launch must be a mapping, got {launch!r}."])
    _check_script_keys(config)
    return replace(config, notes=(*config.notes, *_near_misses(config)), text=text)


def _with_target(config: JobConfig) -> JobConfig:
    """Give the device target as MindSpore spells it, however it was written."""
    spelling = config.values.get("device_target")
    target = TARGETS.get(spelling.lower()) if isinstance(spelling, str) else None
    if target is None or target == spelling:
        return config
    note = f"{config.where('device_target')}: ".removeprefix(": ")
    note += f"device_target {spelling!r} means {target!r}, which the script is given"
    return replace(config, values={**config.values, "device_target": target}, notes=(*config.notes, note))


def without_secrets(text: str) -> str:
    """The text of a config for a file of the run: secrets in launch.env, and launch.webhook, have no value there."""
    import yaml

    try:
        root = next(iter(yaml.compose_all(text, Loader=yaml.SafeLoader)), None)
    except yaml.YAMLError:
        return text
    launch = _value(root, "launch")
    places: list[tuple[int, int]] = []
    for owner in (launch, _value(launch, "env")):
        for key, node in _pairs(owner):
            start, end = node.start_mark.index, node.end_mark.index
            is_inside = owner.start_mark.index < start < end  # an alias stands for another place
            if not is_inside or node.id != "scalar":
                continue
            if key.value == "webhook" if owner is launch else is_secret(key.value, node.value):
                places.append((start, end))
    for start, end in sorted(places, reverse=True):
        text = text[:start] + "null" + ("\n" if text[start:end].endswith("\n") else "") + text[end:]
    return text


def _value(node: Any, name: str) -> Any:
    return next((value for key, value in _pairs(node) if key.value == name), None)


def _pairs(node: Any) -> list[tuple[Any, Any]]:
    """Return the nodes of names and values in a node of YAML, none where it is not a mapping."""
    if node is None or node.id != "mapping":
        return []
    return [(key, value) for key, value in node.value if key.id == "scalar"]  # any other is refused when it is built


def override(config: JobConfig, assignments: tuple[str, ...]) -> JobConfig:
    """Apply `--set key=value`; the key must be there already, so that a misspelt one cannot pass unseen."""
    if not assignments:
        return config
    values: dict[str, Any] = dict(config.values)
    for assignment in assignments:
        key, equals, raw = assignment.partition("=")
        if not equals or not key:
            raise RequestError(f'--set {assignment!r}: write it as key=value, for example "--set batch_size=64".')
        _assign(values, key, read_scalar(raw), config.name)
    changed = _with_target(replace(config, values=values))
    _check_script_keys(changed)
    return changed


def split_assignments(assignments: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Tell `--set key=value` from `--set launch.key=value`, which is a setting of the launcher."""
    own = tuple(item for item in assignments if not item.startswith("launch."))
    settings = [item.removeprefix("launch.").partition("=") for item in assignments if item.startswith("launch.")]
    return own, {key: read_scalar(raw) for key, _, raw in settings}


def read_scalar(raw: str) -> Any:
    """Read a value as YAML does; what is no YAML is text."""
    from mslaunch.documents.yaml_text import parse_yaml  # no job without a YAML or a --set waits for that

    try:
        return parse_yaml(raw)
    except Unreadable:
        return raw


def write_scalar(value: Any) -> str:
    """Write plain data (None, numbers, text, lists, mappings) so that read_scalar returns it."""
    return value if isinstance(value, str) and read_scalar(value) == value else write_flow(value)


def write_flow(value: Any) -> str:
    """Write plain data in one line of YAML: texts are quoted, and what YAML cannot hold in quotes is escaped."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{write_flow(key)}: {write_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_flow, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")  # for YAML, 1e-05 is a text
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _assign(values: dict[str, Any], key: str, value: Any, name: str) -> None:
    *parents, last = key.split(".")
    place = values
    where = f"{name} has" if name else "no --config was given, so there is"
    for parent in parents:
        inner = place.get(parent)
        if not isinstance(inner, dict):
            raise RequestError(f"--set {key}: {where} no section {parent!r}{did_you_mean(parent, place)}")
        place[parent] = place = dict(inner)
    if last not in place and last not in SCRIPT_KEYS:
        raise RequestError(f"--set {key}: {where} no key {last!r}{did_you_mean(last, place)}")
    place[last] = value


def _key_lines(node: Any, name: str, path: _Path = ()) -> Iterator[tuple[_Path, int]]:
    seen: dict[str, int] = {}
    for key, value in _pairs(node):
        line = key.start_mark.line + 1
        if key.value in seen and key.value != "<<":
            raise ConfigError([f"{name}:{line}: {key.value!r} stands on line {seen[key.value]} already. Keep one."])
        seen[key.value] = line
        yield (*path, key.value), line
        yield from _key_lines(value, name, (*path, key.value))


def _check_script_keys(config: JobConfig) -> None:
    shared = {name: value for name, value in config.values.items() if name in SCRIPT_KEYS}
    try:
        READERS.reader_of(ScriptKeys).read(shared)
    except Mismatch as error:
        problems = []
        for mismatch in (error, *error.others):
            (name,) = mismatch.place
            problems.append(f"{config.where(name)}: {name}: {mismatch}, got {mismatch.value!r}.")
        raise ConfigError(problems) from None


def _near_misses(config: JobConfig) -> Iterator[str]:
    from difflib import get_close_matches

    for key in LAUNCH_ONLY & set(config.values) - set(config.launch):
        yield f"{config.where(key)}: {key!r} stands outside launch, so the script gets it; did you mean launch.{key}?"
    names = ["launch", *SCRIPT_KEYS]
    for key in islice(config.values, 1000):
        near = get_close_matches(key, names, n=1, cutoff=0.85)
        if key not in names and near and near[0] not in config.values:
            yield f"{config.where(key)}: {key!r} is passed to the script as it is; did you mean {near[0]!r}?"
