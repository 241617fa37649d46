"""The settings of one launch: flags over variables over the YAML over defaults, and where each value came from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, NamedTuple

from mslaunch.documents.typed import ABSENT, Mismatch
from mslaunch.errors import ConfigError, did_you_mean
from mslaunch.settings.environment import RANK_VARIABLES, RANKS_ONLY
from mslaunch.settings.launch import COMMAND_LINE, PROGRAM_SETTINGS, SETTINGS, LaunchSettings
from mslaunch.settings.setting import READERS, UnknownKey
from mslaunch.settings.yaml_config import JobConfig

_VARIABLES = {name: f"MSLAUNCH_{name.upper()}" for name in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings and where each came from."""

    values: LaunchSettings
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()
    """What a person should know about them."""


class _Layer(NamedTuple):
    """Settings from one place, and where it has each from; a later layer outweighs an earlier one."""

    values: Mapping[str, Any]
    source: Callable[[str], str]
    are_flags: bool = False


def resolve(
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    config: JobConfig,
    assigned: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge flags over MSLAUNCH_* variables over the YAML over defaults; report every wrong value at once.

    `assigned` is what `--set launch.key=value` gave; a flag of its own outweighs it.
    """
    variables, notes = _read_variables(environment)
    layers = (
        _Layer(config.launch, lambda name: f"{config.where('launch', name)} (launch.{name})"),
        _Layer(variables, _VARIABLES.__getitem__),
        _Layer(assigned or {}, lambda name: f"--set launch.{name}"),
        _Layer(flags, flag_name, are_flags=True),
    )
    raw: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, "default")
    findings: list[str] = []
    for layer in layers:
        _one_program(layer, raw, sources, findings)
        _merge(layer, raw, sources, findings)
    try:
        values: LaunchSettings = READERS.reader_of(LaunchSettings).read(raw)
    except Mismatch as error:
        findings += [_finding(mismatch, sources) for mismatch in (error, *error.others)]
    if findings:
        raise ConfigError(list(dict.fromkeys(findings)))
    return Settings(values, sources, tuple(notes))


def _merge(layer: _Layer, raw: dict[str, Any], sources: dict[str, str], findings: list[str]) -> None:
    for name, value in layer.values.items():
        source = layer.source(name)
        if name not in SETTINGS:
            near = did_you_mean(name, SETTINGS)
            unknown = "there is no such setting" if layer.are_flags else f"launch has no key {name!r}"
            findings.append(f"{name if layer.are_flags else _place(source)}: {unknown}{near}")
        elif name == "env" and layer.are_flags:  # they add to the variables of other layers
            raw[name] = {**(raw.get(name) or {}), **value}
            sources[name] = f"{source}, {sources[name]}" if sources[name] != "default" else source
        else:
            raw[name], sources[name] = value, source


def given_by_variables(launch: LaunchSettings, sources: Mapping[str, str]) -> dict[str, Any]:
    """The settings whose values MSLAUNCH_* variables gave."""
    names = [name for name, source in sources.items() if source == _VARIABLES[name]]
    return {name: getattr(launch, name) for name in names}


def _read_variables(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that MSLAUNCH_* variables give, and notes about variables that give none."""
    names = {variable: name for name, variable in _VARIABLES.items()}
    readable = [name.upper() for name, setting in SETTINGS.items() if not setting.ignored]
    is_rank = "MSLAUNCH_RUN_DIR" in environment  # what mslaunch has set for it is not meant for a launch in it
    values: dict[str, Any] = {}
    notes: list[str] = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith("MSLAUNCH_") or not text or (is_rank and variable in RANK_VARIABLES):
            continue
        name = names.get(variable, "")
        key = variable.removeprefix("MSLAUNCH_")
        if key in readable:
            values[name] = text
            flag = SETTINGS[name].flag
            if flag and flag.kind is list:
                with suppress(ValueError):  # a quote that is not closed is a letter
                    values[name] = shlex.split(text)
        elif name:
            notes.append(f"{variable} is ignored: {SETTINGS[name].ignored}")
        elif variable not in (*RANK_VARIABLES, "MSLAUNCH_SECRET") and not variable.startswith(RANKS_ONLY):
            near = did_you_mean(key, readable).replace("'", "'MSLAUNCH_", 1)
            notes.append(f"{variable} is ignored: there is no such setting{near}")
    return values, notes


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


def flag_name(name: str) -> str:
    """The option that gives a setting, as messages name it."""
    if name == "command":
        return COMMAND_LINE
    flag = SETTINGS[name].flag if name in SETTINGS else None
    return flag.names[0].partition("/")[0] if flag else "--" + name.replace("_", "-")


def _finding(error: Mismatch, sources: Mapping[str, str]) -> str:
    """Say where a wrong value stands, what is wrong with it, and what it is unless it may hold a secret."""
    place = error.place[::-1]
    name, key, where = place[0], ".".join(place), _place(sources[place[0]])
    if isinstance(error, UnknownKey):
        return f"{where}: launch.{key} {error}"
    is_named = where.startswith("--") and (key == name or not (where.startswith("--set ") or name == "env"))
    label = "" if is_named else f"{key}: "
    is_secret = "env" in place and not isinstance(error.value, (bool, int, float, NoneType))
    if is_secret or error.value is ABSENT or (name == "sync" and "@" in str(error.value)):
        return f"{where}: {label}{error}."
    return f"{where}: {label}{error}, got {error.value!r}."
