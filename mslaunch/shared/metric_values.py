"""Names and values of metrics, as agents send them: JSON has no NaN and no infinity."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Values = dict[str, float | str]

MOST_VALUES = 64  # how many metrics a row holds
RESERVED = frozenset({"time", "attempt", "rank", "host", "device", "count"})
"""Keys that a row of metrics.jsonl has besides its values: no metric has such a name."""
NOT_NUMBERS = frozenset({"nan", "inf", "-inf"})  # what stands for numbers that JSON does not have
LARGEST_INT = 2**63 - 1
_LARGEST_FLOAT = 1.7e308
_HUGE_INT = 10**300
_matches_name = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}").fullmatch


def is_name(name: object) -> bool:
    """Tell whether a metric may have this name."""
    return isinstance(name, str) and name not in RESERVED and _matches_name(name) is not None


def check_values(values: Mapping[str, Any]) -> str | None:
    """Say what is expected where these are not the values of a row: numbers, or what stands for them, by name."""
    if len(values) > MOST_VALUES:
        return f"at most {MOST_VALUES} metrics"
    for name, value in values.items():
        if not is_name(name) or not _is_value(value):
            return "numbers by the names of metrics"
    return None


def _is_value(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= LARGEST_INT
    if type(value) is float:
        return value - value == 0.0  # neither NaN nor infinite
    return type(value) is str and value in NOT_NUMBERS


def parse_number(text: str) -> float | None:
    """Read a number: a whole one stays whole."""
    try:
        return int(text) if text.isdigit() and text.isascii() else float(text)
    except (ValueError, OverflowError):
        return None


def put(values: Values, name: str, number: float) -> None:
    """Add a metric to a row, where its name is one and there is room for it."""
    if name in values or (len(values) < MOST_VALUES and is_name(name)):
        values[name] = to_wire(number)


def to_wire(number: float) -> float | str:
    if type(number) is int:
        if abs(number) <= LARGEST_INT:
            return number
        return float(number) if abs(number) < _HUGE_INT else "inf"
    if number != number:  # noqa: PLR0124 -- only NaN differs from itself
        return "nan"
    if -_LARGEST_FLOAT < number < _LARGEST_FLOAT:
        return number
    return "inf" if number > 0 else "-inf"


def is_odd(values: Values) -> bool:
    """Tell whether a value is NaN or infinite: such a row is never left out."""
    return not NOT_NUMBERS.isdisjoint(value for value in values.values() if type(value) is str)


def checked(values: Any) -> Values:
    """Return what is right of values that a rank has written."""
    right: Values = {}
    if isinstance(values, dict):
        for name, value in values.items():
            if type(value) in (int, float):
                put(right, name, value)
            elif type(value) is str and value in NOT_NUMBERS:
                put(right, name, float(value))
    return right
