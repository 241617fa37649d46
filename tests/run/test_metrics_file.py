"""metrics.jsonl: rows, their thinning, and reading them while they are written."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest

from mslaunch.metrics.rows import Row, Source, Spread, merge, read_row, write_row
from mslaunch.metrics.series import SeriesTable, last_step_came
from mslaunch.run.metrics_file import Metrics, MetricsWriter, last_table, last_values, read_rows, thin

RANK_3 = Source(0, 3)


def losses(source: Source, *numbers: float) -> list[Row]:
    return [Row(float(time), source, {"step": time, "loss": number}) for time, number in enumerate(numbers)]


@pytest.mark.parametrize(
    "row",
    [
        Row(1763390000.123, RANK_3, {"step": 120, "loss": 0.5}),
        Row(1.0, Source(1, None, "n0"), {"load": 3.25}),
        Row(1.0, Source(0, None, "n0", 2), {"utilisation": 97}),
        Row(1.0, RANK_3, {"loss": Spread(0.5, 0.25, 8)}, 8),
        Row(1.0, RANK_3, {"loss": math.inf, "x/y": -math.inf}),
    ],
)
def test_a_row_is_read_as_it_was_written(row: Row) -> None:
    """Of a rank, a host and a device, thinned or not; infinite numbers are JSON all the same."""
    line = write_row(row)
    json.loads(line, parse_constant=pytest.fail)
    assert read_row(line) == row


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"time": "1", "attempt": 0, "rank": 0}',
        '{"time": 1e999, "attempt": 0, "rank": 0}',
        f'{{"time": 1{"0" * 400}, "attempt": 0, "rank": 0}}',
        '{"time": 1, "attempt": 0}',
        '{"time": 1, "rank": 0}',
        '{"time": 1, "attempt": 0, "rank": true}',
        '{"time": 1, "attempt": 0, "rank": -1}',
        '{"time": 1, "attempt": 0, "rank": 0, "count": "x"}',
        '{"time": 1, "attempt": 0, "host": 5}',
    ],
)
def test_a_line_that_is_no_row_is_none(line: str) -> None:
    """A launcher may be killed while it writes, and anybody may write into a folder that is theirs."""
    assert read_row(line) is None


def test_values_that_are_no_numbers_are_left_out() -> None:
    """The others of the row are kept."""
    others = f'"b": "x", "c": true, "d": [1, 2], "e f": 1, "g": 1{"0" * 30}'
    row = read_row(f'{{"time": 1, "attempt": 0, "rank": 0, "a": 1, {others}}}')
    assert row is not None
    assert row.values == {"a": 1}


def test_merged_rows_keep_last_least_and_greatest() -> None:
    """Also when they are merged again, and when a number is not finite."""
    first, second = merge(losses(RANK_3, 5.0, 1.0)), merge(losses(RANK_3, 3.0, math.nan))
    both = merge([first, second])
    assert first.values["loss"] == Spread(1.0, 1.0, 5.0)
    found = both.values["loss"]
    assert isinstance(found, Spread)
    assert math.isnan(found.last)
    assert (found.least, found.greatest, both.count) == (1.0, 5.0, 4)


def test_a_number_that_did_not_vary_stays_one() -> None:
    """Rows of a constant do not grow when they are merged."""
    assert merge(losses(RANK_3, 2.0, 2.0)).values["loss"] == 2.0


def test_thinning_keeps_extremes_and_the_newest_row() -> None:
    """Wherever the peak was, and each source has its share."""
    numbers = [1.0] * 1000
    numbers[777] = 99.0
    rows = [*losses(RANK_3, *numbers), *losses(Source(1, 3), 4.0, 3.0)]
    thinned = list(thin(lambda: rows, 40))
    first = [row for row in thinned if row.source == RANK_3]
    assert 10 < len(first) <= 20
    assert max(value.greatest for row in first if isinstance(value := row.values["loss"], Spread)) == 99.0
    assert first[-1] == rows[999]
    assert [row for row in thinned if row.source == Source(1, 3)] == rows[1000:]


def test_a_file_stays_short_however_long_a_job_runs(tmp_path: Path) -> None:
    """And its curve goes on from the first step to the last."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, largest=100_000, thinned=50_000)
    steps = 30_000
    longest = 0
    for step in range(steps):
        writer.write(Row(float(step), Source(0, rank), {"step": step, "loss": 1 / (step + 1)}) for rank in range(2))
        if step % 1000 == 0:
            longest = max(longest, path.stat().st_size)
    writer.close()
    assert longest < 250_000
    found = Metrics(path).table.of(Source(0, 1))["loss"]
    assert found.greatest[0] == 1.0
    assert (found.step[-1], len(found) > 100) == (steps - 1, True)
    assert sum(row.count for row in read_rows(path) if row.source.rank == 1) == steps


def test_a_reader_follows_a_file_that_is_thinned(tmp_path: Path) -> None:
    """It sees every step in the end, once."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, largest=20_000, thinned=5_000)
    metrics = Metrics(path)
    for step in range(2000):
        writer.write([Row(float(step), RANK_3, {"step": step})])
        if step % 50 == 0:
            metrics.update()
    writer.close()
    metrics.update()
    steps = metrics.table.of(RANK_3)["step"].value
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == 1999


def test_a_full_disk_costs_rows_and_nothing_else(tmp_path: Path) -> None:
    """No half line is left, and rows are written again when there is room."""
    path = tmp_path / "metrics.jsonl"
    pid = os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        writer = MetricsWriter(path)
        for step in range(100):
            writer.write([Row(float(step), RANK_3, {"step": step})])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.write([Row(100.0, RANK_3, {"step": 100})])
        writer.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    lines = path.read_text().splitlines()
    rows = [read_row(line) for line in lines]
    assert None not in rows
    assert 5 < len(rows) < 30
    assert rows[-1] is not None
    assert rows[-1].values["step"] == 100


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A job goes on without metrics, until there is a folder."""
    path = tmp_path / "missing" / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(losses(RANK_3, 1.0))
    path.parent.mkdir()
    writer.write(losses(RANK_3, 2.0))
    writer.close()
    assert [row.values["loss"] for row in read_rows(path)] == [2.0]


def test_the_last_values_of_a_long_file_come_from_its_end(tmp_path: Path) -> None:
    """A rank that fell silent long ago is found further up."""
    path = tmp_path / "metrics.jsonl"
    silent = Row(0.0, Source(0, 1), {"step": 1})
    filler = Row(0.0, Source(0, 0), {"name_" + "x" * 50 + str(i): i for i in range(50)})
    with path.open("w") as file:
        file.write(write_row(silent))
        file.writelines(write_row(filler) for _ in range(1500))
        file.write(write_row(Row(9.0, Source(0, 0), {"step": 7})))
    found = last_values(path, 2)
    assert found[Source(0, 1)] == {"step": 1}
    assert found[Source(0, 0)]["step"] == 7


def test_the_last_step_of_a_rank_that_hangs_is_found(tmp_path: Path) -> None:
    """Its load is measured on and on, and pushes the step far up in the file."""
    path = tmp_path / "metrics.jsonl"
    load = Row(9.0, Source(0, 0), {"name_" + "x" * 50 + str(i): i for i in range(50)})
    with path.open("w") as file:
        file.write(write_row(Row(5.0, Source(0, 0), {"step": 7})))
        file.writelines(write_row(load) for _ in range(1500))
    assert last_step_came(last_table(path, 1, with_steps=True).of(Source(0, 0))) == 5.0


def test_series_have_the_step_that_was_known_then() -> None:
    """Memory is told without a step: it belongs to the last one; steps count on over epochs."""
    table = SeriesTable()
    table.add(
        [
            Row(0.0, RANK_3, {"memory": 5}),
            Row(1.0, RANK_3, {"step": 1, "total_step": 11, "loss": 0.5}),
            Row(2.0, RANK_3, {"memory": 6}),
        ]
    )
    memory = table.of(RANK_3)["memory"]
    assert math.isnan(memory.step[0])
    assert (memory.step[1], memory.value[1]) == (11, 6)
    assert table.last(RANK_3) == {"memory": 6, "step": 1, "total_step": 11, "loss": 0.5}
    assert table.names() == ["memory", "step", "total_step", "loss"]


def test_a_program_reads_the_numbers_of_a_rank(tmp_path: Path) -> None:
    """Of its last attempt, or of an earlier one; a name that it never told is an empty series."""
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write([*losses(Source(0, 0), 9.0, 8.0), *losses(Source(1, 0), 7.0)])
    writer.close()
    metrics = Metrics(path)
    assert metrics.names() == ["step", "loss"]
    assert metrics.last(0) == {"step": 0, "loss": 7.0}
    assert list(metrics.series("loss").value) == [7.0]
    assert list(metrics.series("loss", attempt=0).value) == [9.0, 8.0]
    assert len(metrics.series("accuracy")) == 0
