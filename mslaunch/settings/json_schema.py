"""The JSON Schema of a job's YAML, for editors."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mslaunch.settings.launch import LaunchSettings
from mslaunch.settings.setting import Limits
from mslaunch.settings.yaml_config import ScriptKeys

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema(methods: Iterable[str]) -> dict[str, Any]:
    """Return the schema; `methods` are offered as examples."""
    launch = _section(LaunchSettings)
    launch["properties"]["method"]["examples"] = list(methods)  # not an enum: plug-ins add to them
    job = _section(ScriptKeys) | {"additionalProperties": True, "title": "mslaunch job"}
    job["properties"]["launch"] = launch
    return job | {"$schema": "https://json-schema.org/draft/2020-12/schema"}


def _section(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    properties, required = {}, []
    for field in fields(kind):
        setting = field.metadata["setting"]
        key = setting.key or field.name
        properties[key] = _of(hints[field.name]) | {"description": setting.description}
        if field.default is not MISSING:
            properties[key]["default"] = field.default
        elif field.default_factory is MISSING:
            required.append(key)
    section = {"type": "object", "description": kind.__doc__, "properties": properties, "required": required}
    return section | {"additionalProperties": False}


def _of(hint: Any) -> dict[str, Any]:
    """Return the schema of the values that an annotation stands for."""
    origin, args = get_origin(hint), get_args(hint)
    described: dict[str, Any] = {}
    if is_dataclass(hint):
        described = _section(hint)
    elif origin is Annotated:
        described = _of(args[0])
        for limits in args[1:]:
            if isinstance(limits, Limits):
                bounds = zip(("minimum", "maximum", "exclusiveMinimum"), limits, strict=True)
                described |= {name: number for name, number in bounds if number is not None}
    elif origin in (Union, types.UnionType):
        described["anyOf"] = [_of(arg) for arg in args]
    elif origin is Literal:
        described = {"type": "string", "enum": list(args)}
    elif origin is tuple:
        described = {"type": "array", "items": _of(args[0])}
    elif origin is dict:
        described = {"type": "object", "additionalProperties": _of(args[1])}
    elif hint in _TYPES:
        described["type"] = _TYPES[hint]
    return described
