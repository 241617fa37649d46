"""`mslaunch diagnose`: the first failure, named, for a run of ours or for any folder of logs."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch.cli.console.console import verdict_text
from mslaunch.cli.console.describe import describe_warnings
from mslaunch.cli.console.progress_bar import ReadingLine
from mslaunch.cli.diagnose import explain
from mslaunch.cli.diagnose.bundle import open_bundle, save_bundle
from mslaunch.cli.parsing import common
from mslaunch.diagnose.evidence import Evidence, read_sources
from mslaunch.diagnose.judge import judge, judge_logs
from mslaunch.diagnose.logs.sources import LogFile, files_of
from mslaunch.errors import NoSuchRun, RequestError
from mslaunch.run.record import record_of_logs
from mslaunch.shared import layout
from mslaunch.text import plain

if TYPE_CHECKING:
    from mslaunch.run.record import RunRecord

app = common.new_app()
NOTES_SHOWN = 5
NO_FAILURE = {
    "lost": "its launcher was killed, and its ranks were ended then; their logs show no failure of their own",
    "succeeded": "it succeeded",
    "stopped": "it was stopped from outside (Ctrl-C, a signal, or mslaunch stop)",
    "running": "it is running, and no rank has failed",
}


@app.command()
def diagnose(
    what: Annotated[
        str | None,
        typer.Argument(help="A folder of logs, a run, or a bundle; by default the newest run.", metavar="DIR|RUN|ZIP"),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write the evidence, without secrets, into a zip file to send.", metavar="FILE"),
    ] = None,
    runs_dir: common.RunsDir = None,
    as_json: common.Json = False,
    list_known: Annotated[bool, typer.Option("--list", help="List the failures that are known.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--explain", help="Explain a known failure, or an error code such as EI0006.", metavar="ID|CODE"),
    ] = None,
) -> None:
    """Why did it die? For a run, for msrun's log folder, for any folder of logs."""
    if list_known or name is not None:
        explain.show(name, what, as_json)
        return
    judged = _judge(what, runs_dir, bundle is not None)
    for note in judged.evidence.notes:
        common.say_aside(note)
    record = judged.record
    if bundle is not None:
        print(save_bundle(bundle, record, judged.is_run, judged.sources, judged.evidence), file=sys.stderr)
    if as_json:
        common.print_json(record.verdict.to_dict() if record.verdict else None)
    elif record.verdict is None:
        print(f"{record.run_id}: {NO_FAILURE.get(record.state, 'no sign of a failure in the logs')}")
        lines = [*describe_warnings(record), *(f"note: {note}" for note in record.notes[-NOTES_SHOWN:])]
        print("".join(f"{plain(line)}\n" for line in lines), end="")
    else:
        print(verdict_text(record, sys.stdout.isatty()), end="")


@dataclass(frozen=True)
class _Judged:
    """A record with its verdict, and what the verdict rests on."""

    record: RunRecord
    is_run: bool
    sources: list[LogFile]
    evidence: Evidence


def _judge(what: str | None, runs_dir: str | None, everything: bool) -> _Judged:
    """Judge a file, a folder or a run; with `everything` read the logs of a run that has its verdict as well."""
    path = Path(what) if what else None
    if path is not None and path.is_file():
        if zipfile.is_zipfile(path):
            record, sources = open_bundle(path)
            return _of_run(record, sources, everything) if record else _of_logs(str(path), sources)
        if path.suffix == ".zip":
            raise RequestError(f"{path}: not a zip file that can be read; it may be cut off. Copy it once more.")
        return _of_logs(str(path), [LogFile(path.name, str(path), path.stat().st_size)])
    if path is not None and path.is_dir() and not (path / layout.RECORD).is_file():
        return _of_logs(str(path), files_of(path))
    try:
        run = common.find_run(what, runs_dir)
    except NoSuchRun:
        if what in (None, layout.LATEST):
            raise
        raise RequestError(f"{what}: no such folder, run or zip. `mslaunch ps` lists the runs.") from None
    record = run.record
    return _of_run(record, files_of(run.path) if everything or not _is_judged(record) else [], everything)


def _is_judged(record: RunRecord) -> bool:
    return record.verdict is not None or record.state in ("succeeded", "stopped")


def _of_run(record: RunRecord, sources: list[LogFile], everything: bool) -> _Judged:
    """A verdict that was given stands; a run that has none, because its launcher was lost, is judged by its logs."""
    if _is_judged(record):
        return _Judged(record, True, sources, _read(sources, True) if everything else Evidence())
    evidence = _read(sources, True)
    ends = {rank.rank: rank for rank in record.ranks}
    cases = []
    for case in evidence.cases:
        if case.rank is None or (end := ends.get(case.rank)) is None:
            cases.append(case)
            continue
        cases.append(replace(case, host=end.host, device=end.device_id, exit_code=end.exit_code, signal=end.signal))
    return _Judged(replace(record, verdict=judge(cases, evidence.places)), True, sources, evidence)


def _of_logs(name: str, sources: list[LogFile]) -> _Judged:
    evidence = _read(sources, False)
    if not evidence.cases:
        raise RequestError(f"{name}: no logs here (*.log, *.txt). Name the folder that msrun's --log_dir named.")
    return _Judged(record_of_logs(name, judge_logs(evidence.cases, evidence.places)), False, sources, evidence)


def _read(sources: list[LogFile], names_are_true: bool) -> Evidence:
    """Read logs, with a line that shows how far it is where that takes longer than a moment."""
    line = ReadingLine(sys.stderr)
    try:
        return read_sources(sources, line.show, names_are_true)
    finally:
        line.clear()
