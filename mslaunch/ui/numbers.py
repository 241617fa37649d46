"""Numbers of a document as JSON holds them. Pure."""

from __future__ import annotations

import math

EXACT = 1 << 53  # below it, a page has every whole number


def number(value: float) -> float | str | None:
    """Write a whole number, such as a step, with all its digits and others with six; JSON has no infinite ones."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    whole = float(value).is_integer() and abs(value) < EXACT
    short = value if whole else float(f"{value:.6g}")
    return int(short) if float(short).is_integer() and abs(short) < EXACT else short
