"""How far a rank is, in words, from its last numbers."""

from __future__ import annotations

import math

import pytest

from mslaunch.metrics.progress import duration_words, find_extent, progress_words
from mslaunch.metrics.rows import Number


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, []),
        ({"epoch": 1, "step": 150, "loss": 0.53, "step_time": 0.04}, ["epoch 1 step 150", "loss 0.53", "25.0 steps/s"]),
        ({"step": 3, "loss": math.nan}, ["step 3", "loss nan"]),
        ({"epoch": 1.5}, ["epoch 1.5"]),
        ({"step": 10, "steps": 100, "step_time": 2.0}, ["step 10/100", "2 s/step", "3 min left"]),
        (
            {"epoch": 2, "epochs": 4, "step": 50, "steps": 100, "step_time": 0.5},
            ["epoch 2/4 step 50/100", "2.0 steps/s", "2 min left"],
        ),
        (
            {"epoch": 1, "epochs": 3, "step": 1, "steps": 10, "total_step": 11, "step_time": 1.0},
            ["epoch 1/3 step 1/10", "1.0 steps/s", "19 s left"],
        ),
        (
            {"epoch": 2, "step": 5, "steps": 10, "total_step": 15, "step_time": 1.0},
            ["epoch 2 step 5/10", "1.0 steps/s", "5 s left of epoch 2"],
        ),
        (
            {"epoch": 1.5, "step": 5, "steps": 10, "step_time": 1.0},
            ["epoch 1.5 step 5/10", "1.0 steps/s", "5 s left"],
        ),
        ({"epoch": 1, "epochs": 4, "step": 5, "step_time": 1.0}, ["epoch 1/4 step 5", "1.0 steps/s"]),
        ({"epoch": 1, "epochs": 4, "step_time": 1.0}, ["epoch 1/4", "1.0 steps/s"]),
        ({"loss": 1, "step_time": 0}, ["loss 1"]),
        ({"loss": 1, "step_time": math.inf}, ["loss 1"]),
    ],
)
def test_progress_is_said_in_parts(values: dict[str, Number], words: list[str]) -> None:
    """Whatever of it is known."""
    assert progress_words(values) == words


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"epoch": 2, "epochs": 4, "step": 50, "steps": 100}, (0.375, "")),
        ({"epoch": 0, "epochs": 4, "step": 50, "steps": 100}, (0.125, "")),
        ({"epoch": 1, "epochs": 4, "step": 50, "steps": 100, "total_step": 150}, (0.375, "")),
        ({"epoch": 3, "epochs": 3, "step": 110, "steps": 100}, (1.0, "")),
        ({"epoch": 1, "step": 50, "steps": 100}, (0.5, " of epoch 1")),
        ({"epoch": 1.0, "step": 50, "steps": 100}, (0.5, "")),
        ({"epoch": 1, "epochs": 4}, (0.25, "")),
        ({"epoch": 1, "epochs": 4, "step": 5}, None),
        ({"step": 5}, None),
    ],
)
def test_a_share_is_of_the_job_or_of_an_epoch_by_name(
    values: dict[str, Number], share: tuple[float, str] | None
) -> None:
    """Never more than all of it, and unknown where no line tells the whole."""
    extent = find_extent(values)
    assert (extent and (extent.share, extent.words)) == share


@pytest.mark.parametrize(
    ("age", "step_time", "last"),
    [(29, 0.3, "3.3 steps/s"), (47, 0.3, "no step for 47 s"), (47, 5.0, "5 s/step"), (51, 5.0, "no step for 51 s")],
)
def test_a_speed_of_long_ago_is_not_told(age: float, step_time: float, last: str) -> None:
    """After 30 s without a step, or after the time of ten steps where that is longer."""
    assert progress_words({"step": 7, "step_time": step_time}, age) == ["step 7", last]


@pytest.mark.parametrize(
    ("seconds", "words"), [(8, "8 s"), (700, "12 min"), (12_600, "3.5 h"), (181_440, "2.1 days"), (0, "0 s")]
)
def test_a_duration_has_one_unit(seconds: float, words: str) -> None:
    """As exact as a person needs it."""
    assert duration_words(seconds) == words
