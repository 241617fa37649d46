"""The files of runs that others may have written: run.json, plan.json, events.jsonl, sweep.json, error.json, logs."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import get_type_hints

from fuzz.mutate import mutate_bytes, mutate_json, mutate_records
from fuzz.requests import ROOT, check_written
from fuzz.run import Border, samples
from mslaunch.cli.console.describe import describe_labels, describe_plan
from mslaunch.cli.diagnose import diagnose
from mslaunch.cli.ps import ps
from mslaunch.cli.status import number_columns, status
from mslaunch.diagnose import stacks
from mslaunch.metrics.progress import progress_words
from mslaunch.metrics.rows import read_row, write_row
from mslaunch.run import export, labels, sweep_record
from mslaunch.run.events import RunEvent, follow_events
from mslaunch.run.metrics_file import Metrics, last_values, read_rows, thin
from mslaunch.run.paths import RunFolder, SweepFolder
from mslaunch.run.run import Run, stacks_in
from mslaunch.shared import layout


def _folder_with(folder: Path, name: str, data: bytes) -> RunFolder:
    (folder / "r1").mkdir(exist_ok=True)
    (folder / "r1" / name).write_bytes(data)
    return RunFolder(folder / "r1")


def _open_record(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        run = str(_folder_with(folder, "run.json", data).path)
        ps(runs_dir=str(folder))
        status(name=run)
        status(name=run, as_json=True)
        diagnose(what=run)

    return read


def _open_plan(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        plan = Run(_folder_with(folder, "plan.json", data)).plan
        assert isinstance(plan.port, int)
        describe_plan(plan).encode("utf-8", "surrogateescape")
        check_written(plan)

    return read


def _open_events(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        found = _folder_with(folder, "events.jsonl", data)
        for event in follow_events(found, lambda: True):
            _check_types(event)
        for groups in stacks_in(data):
            assert all(isinstance(group, str) for group in groups)

    return read


def _check_types(event: RunEvent) -> None:
    kinds = get_type_hints(type(event))
    for one in fields(event):
        value = getattr(event, one.name)
        assert isinstance(value, kinds[one.name] if kinds[one.name] is not float else (int, float)), one.name


def _open_sweep(folder: Path) -> Callable[[bytes], object]:
    path = SweepFolder(folder)

    def read(data: bytes) -> None:
        path.record.write_bytes(data)
        found = sweep_record.read(path)
        sweep_record.save(path, found)
        for run_id in found.run_ids:
            assert path.run(run_id).path.parent == folder
        for one in found.combinations:
            assert one.values is not None
            assert one.label is not None
            assert one.assignments is not None

    return read


def _open_error(folder: Path) -> Callable[[bytes], object]:
    _folder_with(folder, "log.txt", samples("log")[0])

    def read(data: bytes) -> None:
        _folder_with(folder, "error.json", data)
        diagnose(what=str(folder / "r1"))
        diagnose(what=str(folder / "r1"), as_json=True)

    return read


def _open_log(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        found = _folder_with(folder, "worker_0.log", data)
        diagnose(what=str(found.path))
        text = data.decode("utf-8", "replace")
        stacks.group({0: stacks.parse(text)})

    return read


def _open_metrics(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        found = _folder_with(folder, layout.METRICS, data).metrics
        for values in Metrics(found).all_last().values():
            "".join(progress_words(values)).encode()
        number_columns(last_values(found, 2), [0, 1])
        export.write_csv(RunFolder(found.parent), StringIO())
        export.write_tensorboard(RunFolder(found.parent), folder / "exported")
        shutil.rmtree(folder / "exported", ignore_errors=True)
        for row in thin(lambda: read_rows(found), 10):
            assert read_row(write_row(row)) is not None

    return read


def _open_labels(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        found = _folder_with(folder, layout.LABELS, data)
        describe_labels(labels.read(found)).encode()
        has = labels.read_strictly(found)
        labels.change_tags(has, ["x"], has.tags[:1])

    return read


def _open_bundle(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        path = folder / "bundle.zip"
        path.write_bytes(data)
        diagnose(what=str(path))

    return read


def _bundle() -> bytes:
    """A bundle whose members are not packed, so that what is changed in it is read."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("bundle.json", b'{"record": %b}' % samples("run.json")[0])
        for number, log in enumerate(samples("log")):
            archive.writestr(f"logs/worker_{number}.log", b"[mslaunch: 12 lines left out]\n" + log)
    return made.getvalue()


PLAN = (ROOT / "tests" / "golden" / "plan_dynamic.json").read_bytes()

BORDERS = (
    Border("run.json", samples("run.json"), mutate_json, _open_record),
    Border("plan.json", (PLAN,), mutate_json, _open_plan),
    Border("events", samples("events"), mutate_records(b"\n"), _open_events),
    Border("sweep.json", samples("sweep.json"), mutate_json, _open_sweep),
    Border("error.json", samples("error.json"), mutate_json, _open_error),
    Border("log", samples("log"), mutate_bytes, _open_log),
    Border("labels.json", samples("labels.json"), mutate_json, _open_labels),
    Border("metrics", samples("metrics"), mutate_records(b"\n"), _open_metrics),
    Border("bundle", (_bundle(),), mutate_bytes, _open_bundle),
)
