"""The rows of metrics that agents send, and what is right in them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, TypedDict

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
RESERVED = frozenset({"time", "attempt", "rank", "host", "device", "count"})
"""Keys that a row of metrics.jsonl has besides its values: no metric is called so."""
MOST_VALUES = 64
NOT_NUMBERS = frozenset({"nan", "inf", "-inf"})
"""What stands for numbers that JSON does not have."""
LARGEST_INT = 2**63 - 1


def is_name(name: object) -> bool:
    """Tell whether a metric may be called so."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and name not in RESERVED


def are_values(values: dict[str, Any]) -> bool:
    """Tell whether these are the values of a row: metrics by name, numbers or what stands for them."""
    return len(values) <= MOST_VALUES and all(is_name(name) and _is_value(value) for name, value in values.items())


def _is_value(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= LARGEST_INT
    return math.isfinite(value) if type(value) is float else type(value) is str and value in NOT_NUMBERS


class MetricRow(TypedDict):
    """What was measured at one time: of a rank, of a device of the host, or of the host where both are null."""

    time: float
    rank: int | None
    device: int | None
    values: Annotated[dict[str, float | str], are_values]
