"""The verdict: what run.json and the last lines on the screen say about the first failure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mslaunch.launch.record import RankRecord
from mslaunch.launch.run_folder import RunFolder
from mslaunch.launch.story import Failure


def make_verdict(failure: Failure, ranks: Mapping[int, RankRecord], folder: RunFolder) -> dict[str, Any]:
    """Put together what is known about the first failure."""
    error = _error(folder, failure.rank)
    victims = [rank for rank, record in sorted(ranks.items()) if rank != failure.rank and record.exit_code != 0]
    return {
        "rank": failure.rank,
        "host": failure.host,
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "cause": failure.cause,
        "summary": error.get("message") or failure.summary,
        "advice": None,
        "log": failure.log,
        "line": None,
        "traceback": error.get("traceback"),
        "pattern": None,
        "victims": victims,
    }


def _error(folder: RunFolder, rank: int | None) -> dict[str, Any]:
    if rank is None:
        return {}
    try:
        error = json.loads(folder.error(rank).read_text())
    except (OSError, ValueError):
        return {}
    return error if isinstance(error, dict) and error.get("thread") is None else {}
