"""How a run stands, in a word or two more than its record has."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mslaunch.api import RunRecord


def state_words(record: RunRecord) -> str:
    """Return a run's state; between two attempts, which one it waits for."""
    return f"waiting for attempt {len(record.attempts) + 1}" if _is_between_attempts(record) else record.state


def _is_between_attempts(record: RunRecord) -> bool:
    """Tell whether the ranks in the record are still those of the attempt that ended last."""
    ended = record.attempts[-1].ended if record.attempts and record.state == "running" else None
    if ended is None or not all(rank.ended for rank in record.ranks):
        return False
    last = datetime.fromisoformat(ended)
    return all(datetime.fromisoformat(rank.ended) <= last for rank in record.ranks if rank.ended)
