"""`mslaunch export`: what TensorBoard and spreadsheets read is what the run has told."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from mslaunch.metrics.rows import Row, Source, Spread
from mslaunch.run import export
from mslaunch.run.export import crc32c
from mslaunch.run.metrics_file import MetricsWriter
from mslaunch.run.paths import RunFolder
from mslaunch.run.run import Run
from tests.beds.past_runs import make_run
from tests.conftest import Bench

ROWS = [
    Row(1000.0, Source(0, 0), {"step": 1, "loss": 3.0}),
    Row(1001.0, Source(0, 0), {"step": 2, "loss": Spread(2.5, 2.0, 4.0)}, 4),
    Row(1002.0, Source(0, 1), {"step": 2, "loss": math.nan}),
    Row(1003.0, Source(0, None, "n0"), {"load": 1.5}),
    Row(1004.0, Source(0, None, "n0", 2), {"utilisation": 97}),
    Row(1005.0, Source(1, 0), {"step": 7, "acc/top1": 0.75, "tokens": 4096}),
]


def with_metrics(runs_dir: Path, name: str = "one", rows: list[Row] = ROWS) -> RunFolder:
    run = make_run(runs_dir, name)
    writer = MetricsWriter(run.metrics)
    writer.write(rows)
    writer.close()
    return run


def test_a_checksum_is_the_castagnoli_one() -> None:
    """The check value of the catalogue, and those of RFC 3720."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


def test_tensorboard_reads_what_the_ranks_have_told(bench: Bench, tmp_path: Path) -> None:
    """Each rank, host, device and attempt is a folder; numbers stand at their steps, also those that are not finite."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with_metrics(bench.runs)
    done = bench.mslaunch("export", "one", "--tensorboard", str(tmp_path / "tb"))
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, list[tuple[float, int, float]]]] = {}
    for folder in (tmp_path / "tb" / "one").iterdir():
        read = accumulators.EventAccumulator(str(folder))
        read.Reload()
        found[folder.name] = {
            tag: [(one.wall_time, one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]
        }
    assert found.keys() == {"rank_0", "rank_1", "rank_0.1", "host_n0", "host_n0_device_2"}
    assert found["rank_0"]["loss"] == [(1000.0, 1, 3.0), (1001.0, 2, 2.5)]
    assert math.isnan(found["rank_1"]["loss"][0][2])
    assert found["rank_0.1"]["acc/top1"] == [(1005.0, 7, 0.75)]
    assert found["host_n0"]["load"] == [(1003.0, 3, 1.5)]


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    """A run that goes on is exported again and again."""
    run = with_metrics(tmp_path / "runs")
    first = export.write_tensorboard(run, tmp_path / "tb")
    size = first[0].stat().st_size
    assert export.write_tensorboard(run, tmp_path / "tb") == first
    assert first[0].stat().st_size == size


def test_runs_of_two_sweeps_do_not_mix(tmp_path: Path) -> None:
    """Members of sweeps are called 1, 2 and so on in each."""
    written = []
    for sweep in ("A", "B"):
        run = with_metrics(tmp_path / "runs" / sweep, "1")
        (run.path.parent / "sweep.json").write_text("{}")
        written.append(export.write_tensorboard(RunFolder(run.path), tmp_path / "tb"))
    assert not set(written[0]) & set(written[1])
    assert written[1][0].is_relative_to(tmp_path / "tb" / "B" / "1")


def test_more_ranks_than_files_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are closed and opened again; none loses anything."""
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setattr(export, "MOST_OPEN", 3)
    rows = [Row(float(step), Source(0, rank), {"step": step, "x": rank}) for step in range(4) for rank in range(10)]
    run = with_metrics(tmp_path / "runs", rows=rows)
    for path in export.write_tensorboard(run, tmp_path / "tb"):
        read = accumulators.EventAccumulator(str(path.parent))
        read.Reload()
        assert [one.step for one in read.Scalars("x")] == [0, 1, 2, 3]


def test_csv_has_a_line_for_each_number(bench: Bench) -> None:
    """With its place, its step and its extremes; to a file, or to standard output."""
    with_metrics(bench.runs)
    bench.mslaunch("export", "one", "--csv", "out.csv")
    text = (bench.folder / "out.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 11
    second = next(row for row in rows if row["name"] == "loss" and row["time"] == "1001.000")
    assert [second[name] for name in ("attempt", "rank", "step", "value", "least", "greatest")] == (
        ["0", "0", "2", "2.5", "2.0", "4.0"]
    )
    device = next(row for row in rows if row["name"] == "utilisation")
    assert [device[name] for name in ("rank", "host", "device", "step", "value")] == ["", "n0", "2", "", "97"]
    assert bench.mslaunch("export", "one", "--csv", "-").stdout == text


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("export", "one"), 2, "--tensorboard DIR or --csv FILE"),
        (("export", "bare", "--csv", "x"), 2, "bare has told no metrics"),
        (("export", "one", "--csv", "/nowhere/x"), 3, "/nowhere/x: cannot be written (No such file"),
        (("export", "one", "--tensorboard", "/proc/x"), 3, "/proc/x: cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_told(bench: Bench, args: tuple[str, ...], code: int, said: str) -> None:
    """In one sentence."""
    with_metrics(bench.runs)
    make_run(bench.runs, "bare")
    done = bench.mslaunch(*args)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hostile_file_writes_nothing_outside(tmp_path: Path) -> None:
    """The names of hosts in it become names of folders."""
    run = with_metrics(tmp_path / "runs", rows=[Row(1.0, Source(0, None, "../../../evil/\0x"), {"load": 1})])
    (path,) = Run(run).export_tensorboard(tmp_path / "tb")
    assert path.is_relative_to(tmp_path / "tb" / "one")
    assert ".." not in path.parts
