"""How far a job is and how long it still takes, from the steps that a rank prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mslaunch.metrics.pace import step_time_of
from mslaunch.metrics.progress import progress_words, share_done
from mslaunch.metrics.rows import Number
from mslaunch.metrics.series import STEP_NAMES, Series


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, as far as its output tells."""

    words: tuple[str, ...]
    share: float | None = None
    """What part of the work is done, from 0 to 1."""


def make_progress(last: Mapping[str, Number], series: Mapping[str, Series]) -> JobProgress | None:
    """Return how far a rank is; None where it has printed neither step nor epoch."""
    if not last.keys() & {*STEP_NAMES, "epoch"}:
        return None
    measured = step_time_of(series)
    values = {**last, **({} if measured is None else {"step_time": measured})}
    return JobProgress(tuple(progress_words(values)), share_done(values))
