"""Traces of networks: what `mslaunch trace` calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mslaunch.weights.trace.comparing import TraceComparison


def compare_traces(
    first: str, second: str, *, names: str | None = None, tolerance: float | None = None
) -> TraceComparison:
    """Compare two folders that trace() or torch_trace() has written, output by output."""
    from mslaunch.weights.trace import comparing

    return comparing.compare_traces(Path(first), Path(second), names, tolerance)
