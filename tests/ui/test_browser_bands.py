"""Bands of many ranks: every rank counts at every place, by step where steps are told."""

from __future__ import annotations

import json
import math
import random

from mslaunch.metrics.rows import Row, Source
from mslaunch.metrics.series import SeriesTable
from mslaunch.ui.bounds import REPORT
from mslaunch.ui.curves import Curve, make_curves

RANKS = 64


def band_of(table: SeriesTable, name: str = "loss") -> Curve:
    curves = make_curves(table, 0.0, REPORT)
    return next(curve for curve in curves if curve["name"] == name and "all" in curve)


def test_a_band_has_one_point_a_step_of_all_ranks() -> None:
    """Ranks that tell a step at different moments are still compared at the same step."""
    table = SeriesTable()
    chance = random.Random(1)
    for rank in range(RANKS):
        late = chance.random()
        rows = (
            Row(step + late, Source(0, rank), {"step": step, "loss": 1 / step + rank / 100}) for step in range(1, 16)
        )
        table.add(rows)
    band = band_of(table)
    assert band["s"] == list(range(1, 16))
    assert band["lo"] == [float(f"{1 / step:.6g}") for step in range(1, 16)]
    assert band["hi"] == [float(f"{1 / step + 0.63:.6g}") for step in range(1, 16)]
    assert band["v"] == sorted(band["v"], reverse=True)


def test_ranks_that_tell_different_steps_all_count() -> None:
    """Of many steps a second each rank tells some; its number holds until its next one."""
    table = SeriesTable()
    for rank in range(RANKS):
        steps = range(rank, 10_000, 97)
        table.add(Row(step / 100, Source(0, rank), {"step": step, "loss": float(rank)}) for step in steps)
    band = band_of(table)
    assert len(band["t"]) <= 200
    assert set(band["v"][1:]) == {31.5}
    assert set(band["hi"][1:]) == {63}


def test_what_is_measured_beside_the_steps_is_compared_by_time() -> None:
    """Memory of all ranks at a moment, though each is measured at its own."""
    table = SeriesTable()
    for rank in range(RANKS):
        table.add(Row(step * 10.0, Source(0, rank), {"step": step}) for step in range(5))
        table.add(Row(at * 2 + rank / 64, Source(0, rank), {"memory": 1000 + rank}) for at in range(20))
    band = band_of(table, "memory")
    assert band["t"] == sorted(set(band["t"]))
    assert (set(band["v"][40:]), set(band["lo"][40:]), set(band["hi"][40:])) == ({1031.5}, {1000}, {1063})


def test_a_band_keeps_the_peak_of_one_rank() -> None:
    """One step of 10,000 is between the points that are drawn."""
    table = SeriesTable()
    for rank in range(RANKS):
        values = ((step, 99.0 if (rank, step) == (33, 4321) else 1.0) for step in range(1000, 6000))
        table.add(Row(float(step), Source(0, rank), {"step": step, "loss": loss}) for step, loss in values)
    assert max(band_of(table)["hi"]) == 99


def test_a_band_counts_the_ranks_that_tell_the_number() -> None:
    """Loss is told by the last stage of a pipeline alone; a rank that is NaN has no place in the band."""
    table = SeriesTable()
    for rank in range(RANKS):
        told = {"loss": math.nan if rank == 63 else 2.0} if rank >= 60 else {}
        table.add(Row(float(step), Source(0, rank), {"step": step, **told}) for step in range(3))
    band = band_of(table)
    assert (band["all"], band["v"], band["hi"]) == (4, [2, 2, 2], [2, 2, 2])


def test_attempts_have_bands_of_their_own() -> None:
    """A restart does not draw a line back to the first step."""
    table = SeriesTable()
    for rank in range(RANKS):
        for attempt in range(3):
            rows = ({"step": step, "loss": float(attempt)} for step in range(3))
            table.add(Row(attempt * 10.0 + at, Source(attempt, rank), row) for at, row in enumerate(rows))
    bands = [curve for curve in make_curves(table, 0.0, REPORT) if curve["name"] == "loss" and "all" in curve]
    assert [(band["attempt"], band["v"]) for band in bands] == [(1, [1, 1, 1]), (2, [2, 2, 2])]


def test_as_many_ranks_as_there_is_room_for_have_curves_of_their_own() -> None:
    """Rank 0, which is wanted always, is not counted twice."""
    table = SeriesTable()
    for rank in range(RANKS):
        table.add([Row(1.0, Source(0, rank), {"step": 1, "loss": 1.0})])
    own = {curve["rank"] for curve in make_curves(table, 0.0, REPORT, (0, 40)) if "rank" in curve}
    assert len(own) == REPORT.sources
    assert {0, 40} <= own


def test_steps_have_all_their_digits() -> None:
    """As numbers of a curve and as its places."""
    table = SeriesTable()
    table.add([Row(1.0, Source(0, 0), {"step": 123456, "total_step": 1250012, "loss": 0.123456789})])
    curves = {curve["name"]: curve for curve in make_curves(table, 0.0, REPORT)}
    assert (curves["step"]["v"], curves["total_step"]["v"]) == ([123456], [1250012])
    assert (curves["loss"]["s"], curves["loss"]["v"]) == ([1250012], [0.123457])


def test_times_and_steps_that_nobody_has_make_no_error() -> None:
    """A file may hold anything that is a number: the document stays JSON."""
    table = SeriesTable()
    for rank in range(RANKS):
        rows = [(-1e308, -1e308), (1.0, math.inf), (1e308, 1e308)]
        table.add(Row(time, Source(0, rank), {"step": step, "loss": step, "cpu": step}) for time, step in rows)
        table.add([Row(-1.7e308, Source(0, rank), {"memory": 1}), Row(1.7e308, Source(0, rank), {"memory": 1.7e308})])
    json.dumps(make_curves(table, 0.0, REPORT), allow_nan=False)
