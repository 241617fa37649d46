"""The combinations of a sweep: `--set key=value,value` read, and every choice of one value per key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mslaunch.errors import RequestError
from mslaunch.settings.yaml_config import read_scalar, write_flow

LIMIT = 10_000
_RANGE = re.compile(r"([-+]?\d+)\.\.([-+]?\d+)(?:\.\.([-+]?\d+))?")
_LONGEST = 18
_CLOSING = {"[": "]", "{": "}"}
_OWN = ("launch.run_id", "launch.runs_dir", "launch.tail", "launch.transport")
"""Settings that are the same for all runs of a sweep, or that the sweep chooses itself."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and its values, as `--set` takes them."""

    key: str
    parts: tuple[str | range, ...]

    def __len__(self) -> int:
        return sum(len(part) if isinstance(part, range) else 1 for part in self.parts)

    @property
    def values(self) -> list[str]:
        return [str(value) for part in self.parts for value in (part if isinstance(part, range) else (part,))]


@dataclass(frozen=True, slots=True)
class Combination:
    """One value for each key."""

    typed: Mapping[str, str]
    """Key and value as they were typed, in that order."""
    varied: tuple[str, ...]
    """The keys that have another value in another combination."""

    @property
    def assignments(self) -> tuple[str, ...]:
        return tuple(f"{key}={value}" for key, value in self.typed.items())

    @property
    def values(self) -> dict[str, Any]:
        return {key: read_scalar(value) for key, value in self.typed.items()}

    @property
    def label(self) -> str:
        """What tells this combination from the others: `lr=0.01 seed=1`."""
        return " ".join(f"{key}={self.typed[key]}" for key in self.varied or self.typed)


def parse_axis(text: str) -> Axis:
    """Read `lr=0.1,0.01`, `seed=1..3` or `seed=0..100..10`; quotes and brackets protect commas."""
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise RequestError(f'--set {text!r}: write it as key=value,value, for example "--set lr=0.1,0.01".')
    items = [item.strip() for item in _split(raw, text)]
    if not all(items):
        raise RequestError(
            f"--set {text}: {'a' if len(items) > 1 else 'its'} value is empty. Write null for no value, '' for no text."
        )
    return Axis(key, tuple(_range(item, text) for item in items))


def _split(raw: str, text: str) -> list[str]:
    """Cut at commas that stand in no quotes or brackets. As in YAML, these count only where a value begins."""
    items, start, before, quote, closing = [], 0, ",", "", [""]
    for at, sign in enumerate(raw):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and before in ",[{:":
            quote = sign
        elif sign in _CLOSING and before in ",[{:":
            closing.append(_CLOSING[sign])
        elif sign == closing[-1]:
            closing.pop()
        elif sign == "," and len(closing) == 1:
            items.append(raw[start:at])
            start = at + 1
        before = before if sign.isspace() else sign
    if quote or len(closing) > 1:
        raise RequestError(f"--set {text}: {quote or closing[-1]} is missing at its end.")
    return [*items, raw[start:]]


def _range(item: str, text: str) -> str | range:
    match = _RANGE.fullmatch(item)
    if not match:
        return item
    if any(len(number or "") > _LONGEST for number in match.groups()):
        raise RequestError(f"--set {text[:80]}: a range of numbers with {_LONGEST} digits or more. Write shorter ones.")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if step == 0:
        raise RequestError(f"--set {text}: a range with step 0 has no end. Write for example {first}..{last}..1.")
    values = range(first, last + (1 if step > 0 else -1), step)
    if not values:
        turned = f"{last}..{first}" if not match[3] else f"{first}..{last}..{-step}"
        raise RequestError(f"--set {text}: the range {item} has no values. Write for example {turned}.")
    return values


def axis_of(key: str, values: object) -> Axis:
    """The axis for values of a Python program: a list, a range or any other iterable; all else is a constant."""
    several = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))
    items = list(values) if several and isinstance(values, Iterable) else [values]
    try:
        return Axis(key, tuple(write_flow(json.loads(json.dumps(_plain(item), allow_nan=False))) for item in items))
    except (TypeError, ValueError) as error:
        raise RequestError(f"values of {key!r}: {error}. Give numbers, text, lists or mappings.") from None


def _plain(item: Any) -> Any:
    """Numbers of NumPy as Python's own."""
    return item.item() if hasattr(item, "item") else item


def combine(axes: Sequence[Axis]) -> tuple[Combination, ...]:
    """Return every combination, the last key's values changing fastest."""
    _check(axes)
    varied = tuple(axis.key for axis in axes if len(axis) > 1)
    keys = [axis.key for axis in axes]
    chosen = product(*(axis.values for axis in axes))
    return tuple(Combination(dict(zip(keys, values, strict=True)), varied) for values in chosen)


def _check(axes: Sequence[Axis]) -> None:
    if not axes:
        raise RequestError("nothing to sweep: name a key and its values, for example --set lr=0.1,0.01.")
    keys = [axis.key for axis in axes]
    for axis in axes:
        if not axis.parts:
            raise RequestError(f"{axis.key!r} has no values, so there is no combination. Give it at least one.")
        if keys.count(axis.key) > 1:
            raise RequestError(
                f"--set {axis.key}: it is set twice. Write all its values in one: --set {axis.key}=VALUE,VALUE."
            )
        if len(axis) > 1 and axis.key in _OWN:
            raise RequestError(f"--set {axis.key}: it is the same for all runs of a sweep. Give it one value.")
    count = math.prod(map(len, axes))
    if count > LIMIT:
        raise RequestError(f"{count:,} combinations; a sweep has {LIMIT:,} at most. Split it, or sweep fewer values.")
    for axis in axes:
        values = [json.dumps(read_scalar(value), default=str) for value in axis.values]
        if len(set(values)) < len(values):
            twice = next(value for value in values if values.count(value) > 1)
            raise RequestError(f"--set {axis.key}: {twice} stands there twice. Name each value once.")


def combinations_of(assignments: Sequence[str]) -> tuple[Combination, ...]:
    """Return every combination of what `--set key=value,value` names."""
    return combine([parse_axis(text) for text in assignments])
