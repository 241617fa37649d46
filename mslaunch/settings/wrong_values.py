"""What pydantic finds wrong in settings, in this program's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from mslaunch.errors import did_you_mean

_TYPE_NAMES = ("tuple[", "literal[", "function-")  # what pydantic adds to a place to tell members of a union apart
_MAPPING = "write keys and values, such as {{key: value}}"
_WORDS = {
    "string_pattern_mismatch": "use letters, digits, dots, dashes and underscores only",
    "string_type": "write a text",
    "tuple_type": "write a list, such as [a, b]",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "bool_type": "write true or false",
    "bool_parsing": "write true or false",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "greater_than_equal": "write {ge} or more",
    "less_than_equal": "write {le} or less",
    "missing": "it is missing",
}
"""By the type of pydantic's error; any other is told in pydantic's words."""


def reason(item: Any) -> str:
    """Say in a clause what pydantic found."""
    if item["type"] in _WORDS:
        return _WORDS[item["type"]].format(**item.get("ctx", {}))
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        message += did_you_mean(item["input"], re.findall(r"'([^']+)'", message)).rstrip("?")
    return message[:1].lower() + message[1:]


def place_of(item: Any) -> tuple[str, ...]:
    """Where an error of pydantic is, as the keys that lead there."""
    added = (*_TYPE_NAMES, "bool") if item["type"].startswith("bool") else _TYPE_NAMES
    return tuple(str(part) for part in item["loc"] if not str(part).startswith(added))


def unknown_key(model: type[BaseModel], item: Any) -> str | None:
    """Say that there is no such key, and which is nearest, where that is what pydantic found."""
    *parents, name = place_of(item)
    if item["type"] != "extra_forbidden":
        return None
    keys = [key for owner in _models_at(model, parents) for key in _keys(owner)]
    return f"launch.{'.'.join(parents)} has no key {name!r}{did_you_mean(name, keys) or '.'}"


def without_other_members(items: Sequence[Any]) -> Iterator[Any]:
    """Leave out, of a list that may also be a text or a bool, that it is none."""
    names = [place_of(item)[0] for item in items]
    for item in items:
        place = place_of(item)
        is_list = isinstance(item["input"], (list, tuple)) and item["type"] in ("string_type", "bool_type")
        if not is_list or len(place) > 1 or names.count(place[0]) == 1:
            yield item


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_at(model: type[BaseModel], place: Sequence[str]) -> list[type[BaseModel]]:
    """The models that may stand at a place: keys lead from one to the next, numbers into a list."""
    models = [model]
    for key in place:
        if not key.isdigit():
            fields: Mapping[str, Any] = {
                field.alias or name: field.annotation for owner in models for name, field in owner.model_fields.items()
            }
            models = list(_models_in(fields.get(key)))
    return models


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models_in(part)
