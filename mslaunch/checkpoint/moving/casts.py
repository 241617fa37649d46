"""Floating-point types that NumPy does not have, and how values go from one type to another."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_STORED = {"BFloat16": np.uint16, "Float8_e4m3fn": np.uint8, "Float8_e5m2": np.uint8}
_EXPONENTS = {"Float8_e4m3fn": (3, 7), "Float8_e5m2": (2, 15)}
"""Bits of the mantissa, and the bias of the exponent."""


def stored_type(dtype: str) -> np.dtype[Any]:
    """The NumPy type that holds the bits of a type."""
    return np.dtype(_STORED.get(dtype) or dtype.lower())


def cast(values: Array, source: str, target: str) -> Array:
    """Return values of one type as bits of another, rounded to nearest; both are kept as stored_type says."""
    if source == target:
        return values
    if target == "BFloat16":
        return _to_bfloat16(np.asarray(to_numbers(values, source), np.float32))
    with np.errstate(over="ignore"):  # as torch does, too large a number becomes infinite
        return to_numbers(values, source).astype(stored_type(target))


def to_numbers(values: Array, dtype: str) -> Array:
    """Return values that NumPy can compute with."""
    if dtype == "BFloat16":
        return np.asarray(np.left_shift(values, 16, dtype=np.uint32)).view(np.float32)
    if dtype in _EXPONENTS:
        numbers: Array = _float8_table(dtype)[values]
        return numbers
    return values


def _to_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    bits = np.where(np.isnan(values).reshape(-1), (bits >> 16) | 0x40, rounded).astype(np.uint16)
    return bits.reshape(values.shape)


@lru_cache
def _float8_table(dtype: str) -> Array:
    mantissa_bits, bias = _EXPONENTS[dtype]
    bits = np.arange(256)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    exponent = (bits & 0x7F) >> mantissa_bits
    fraction = mantissa / (1 << mantissa_bits)
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal) * np.where(bits & 0x80, -1.0, 1.0)
    if dtype == "Float8_e5m2":
        top = exponent == 31
        values[top] = np.where(mantissa[top] == 0, np.copysign(np.inf, values[top]), np.nan)
    else:
        values[(bits & 0x7F) == 0x7F] = np.nan
    table: Array = values.astype(np.float32)
    return table
