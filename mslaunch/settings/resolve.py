"""The settings of one launch: flags over variables over the YAML over defaults, and where each value came from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mslaunch.errors import ConfigError, did_you_mean
from mslaunch.settings.environment import RANK_VARIABLES, RANKS_ONLY, asked_by_variables
from mslaunch.settings.launch import LaunchSettings, flag_of, variable_of
from mslaunch.settings.program import COMMAND_LINE
from mslaunch.settings.program import SETTINGS as PROGRAM_SETTINGS
from mslaunch.settings.wrong_values import place_of, reason, unknown_key, without_other_members
from mslaunch.settings.yaml_config import JobConfig, ScriptKeys


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings and where each came from."""

    values: LaunchSettings
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What a person should know about them."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Settings from one place; a later layer outweighs an earlier one."""

    values: Mapping[str, Any]
    source: Callable[[str], str]
    """Where it has a setting from."""
    unknown: str = "{place}: launch has no key {name!r}"
    """How messages name a setting that does not exist."""
    adds_variables: bool = False
    """Whether its `env` adds to what was given with less weight."""


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    config: JobConfig,
    assigned: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge flags over MSLAUNCH_* variables over the YAML over defaults; report every wrong value at once.

    `assigned` is what `--set launch.key=value` gave; a flag of its own outweighs it.
    """
    variables = asked_by_variables(environment)
    layers = (
        _Layer(config.launch, lambda name: f"{config.where('launch', name)} (launch.{name})"),
        _Layer(_from_variables(variables), _variable),
        _Layer(assigned or {}, lambda name: f"--set launch.{name}"),
        _Layer(flags, flag_name, "{name}: there is no such setting", adds_variables=True),
    )
    raw: dict[str, Any] = {}
    sources = dict.fromkeys(LaunchSettings.model_fields, "default")
    findings: list[str] = []
    for layer in layers:
        _one_program(layer, raw, sources, findings)
        _merge(layer, raw, sources, findings)
    return Settings(_validate(raw, sources, findings), sources, tuple(_unknown_variables(variables)))


def _merge(layer: _Layer, raw: dict[str, Any], sources: dict[str, str], findings: list[str]) -> None:
    for name, value in layer.values.items():
        source = layer.source(name)
        if name not in LaunchSettings.model_fields:
            unknown = layer.unknown.format(place=_place(source), name=name)
            findings.append(f"{unknown}{did_you_mean(name, LaunchSettings.model_fields)}")
        elif name == "env" and layer.adds_variables:
            raw[name] = {**(raw.get(name) or {}), **value}
            sources[name] = f"{source}, {sources[name]}" if sources[name] != "default" else source
        else:
            raw[name], sources[name] = value, source


def given_by_variables(launch: LaunchSettings, sources: Mapping[str, str]) -> dict[str, Any]:
    """The settings whose values MSLAUNCH_* variables gave."""
    names = [name for name, source in sources.items() if source == _variable(name)]
    return {name: getattr(launch, name) for name in names}


def _from_variables(variables: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in LaunchSettings.model_fields:
        text, variable = variables.get(_variable(name)), variable_of(name)
        if text and not variable.ignored:
            values[name] = _split(text) if variable.is_list else text
    return values


def _split(text: str) -> Any:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed is a letter
        return text


def _unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Tell of variables that are none of ours: a misspelt one would change nothing without a word."""
    ignored = {name.upper(): variable_of(name).ignored for name in LaunchSettings.model_fields}
    keys = [key for key, why in ignored.items() if not why]
    for name in sorted(variables):
        key = name.removeprefix("MSLAUNCH_")
        if key in keys or name in (*RANK_VARIABLES, JOIN_SECRET) or name.startswith(RANKS_ONLY):
            continue
        near = did_you_mean(key, keys).replace("'", "'MSLAUNCH_", 1)
        why = ignored.get(key) or f"there is no such setting{near}"
        yield f"{name} is ignored: {why}"


JOIN_SECRET = "MSLAUNCH_SECRET"
"""Not a setting: its value is read where a node joins, and kept nowhere."""


def _one_program(layer: _Layer, raw: dict[str, Any], sources: dict[str, str], findings: list[str]) -> None:
    """A layer that names a program overrides the lower layers, whichever setting names it."""
    names = [name for name in PROGRAM_SETTINGS if layer.values.get(name) is not None]
    if len(names) > 1:
        first, second = (_place(layer.source(name)) for name in names[:2])
        findings.append(f"{first} and {second} both name the program. Keep one.")
    for name in PROGRAM_SETTINGS if names else ():
        raw.pop(name, None)
        sources[name] = "default"


def _place(source: str) -> str:
    """Return a source without the name of the setting, which messages give themselves."""
    return source.partition(" (")[0]


def _variable(name: str) -> str:
    return f"MSLAUNCH_{name.upper()}"


def flag_name(name: str) -> str:
    """The option that gives a setting, as messages name it."""
    if name == "command":
        return COMMAND_LINE
    flag = flag_of(name) if name in LaunchSettings.model_fields else None
    return flag.names[0].partition("/")[0] if flag else "--" + name.replace("_", "-")


def _validate(raw: dict[str, Any], sources: Mapping[str, str], findings: list[str]) -> LaunchSettings:
    try:
        values = LaunchSettings.model_validate(raw)
    except ValidationError as error:
        for item in without_other_members(error.errors()):
            name, key = str(item["loc"][0]), ".".join(place_of(item))
            where = _place(sources[name])
            if unknown := unknown_key(LaunchSettings, item):
                findings.append(f"{where}: {unknown}")
                continue
            is_named = where.startswith("--") and (key == name or not (where.startswith("--set ") or name == "env"))
            label = "" if is_named else f"{key}: "
            has_secret = ("env" in item["loc"] and not _is_plain(item["input"])) or (
                name == "sync" and "@" in str(item["input"])
            )
            got = "" if has_secret or item["type"] == "missing" else f", got {item['input']!r}"
            findings.append(f"{where}: {label}{reason(item)}{got}.")
        raise ConfigError(list(dict.fromkeys(findings))) from None
    if findings:
        raise ConfigError(findings)
    return values


def _is_plain(value: Any) -> bool:
    """Tell whether a value is one that no secret is: a number, true, false or nothing."""
    return value is None or isinstance(value, (bool, int, float))


def schema(methods: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema of a job's YAML, for editors; `methods` are offered as examples."""
    result = ScriptKeys.model_json_schema()
    launch = LaunchSettings.model_json_schema()
    launch["properties"]["method"]["examples"] = list(methods)  # not an enum: plug-ins add to them
    result.setdefault("$defs", {}).update(launch.pop("$defs", {}))
    result["properties"]["launch"] = launch
    result["title"] = "mslaunch job"
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return result
