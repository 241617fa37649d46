"""Names and values of metrics, as they are sent: JSON has no NaN and no infinity."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing itself would cost every start of an agent 6 ms
if TYPE_CHECKING:
    from typing import Any

    Values = dict[str, float | str]

MOST = 64
LARGEST_INT = 2**63 - 1
RESERVED = frozenset({"time", "attempt", "rank", "host", "device", "count"})
"""As messages.metric_rows has them."""
WORDS = frozenset({"nan", "inf", "-inf"})
_is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}").fullmatch


def number(text: str) -> float | None:
    """Read a number: a whole one stays whole."""
    try:
        return int(text) if text.isdigit() and text.isascii() else float(text)
    except (ValueError, OverflowError):
        return None


def put(values: Values, name: str, value: float) -> None:
    """Add a metric to a row, where its name is one and there is room for it."""
    if name in values or (len(values) < MOST and name not in RESERVED and _is_name(name)):
        values[name] = to_wire(value)


def to_wire(value: float) -> float | str:
    if type(value) is int:
        return value if -LARGEST_INT <= value <= LARGEST_INT else float(value) if abs(value) < 10**300 else "inf"
    if value != value:  # noqa: PLR0124 -- only NaN differs from itself
        return "nan"
    return value if -1.7e308 < value < 1.7e308 else "inf" if value > 0 else "-inf"


def is_odd(values: Values) -> bool:
    """Tell whether a value is NaN or infinite: such a row is never left out."""
    return not WORDS.isdisjoint(value for value in values.values() if type(value) is str)


def checked(values: Any) -> Values:
    """Return what is right of values that somebody else has written."""
    right: Values = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(name, str):
            if type(value) in (int, float):
                put(right, name, value)
            elif type(value) is str and value in WORDS:
                put(right, name, float(value))
    return right
