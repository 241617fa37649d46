"""`mslaunch diagnose`: the first failure, named, for a run of ours or for any folder of logs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mslaunch import api, layout
from mslaunch.cli import basics, options
from mslaunch.cli.console import verdict_text
from mslaunch.diagnose.folder import read_folder
from mslaunch.diagnose.judge import Case, judge
from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import RequestError

if TYPE_CHECKING:
    from mslaunch.api import RankRecord, Run, RunRecord

app = basics.new_app()
NO_FAILURE = {
    "lost": "its launcher was killed, and its ranks were ended then; their logs show no failure of their own",
    "succeeded": "it succeeded",
    "stopped": "it was stopped from outside (Ctrl-C, a signal, or mslaunch stop)",
    "running": "it is running, and no rank has failed",
}


@app.command()
def diagnose(
    what: Annotated[
        str | None, typer.Argument(help="A folder of logs, or a run; by default the newest run.", metavar="DIR|RUN")
    ] = None,
    runs_dir: options.RunsDir = None,
    as_json: basics.Json = False,
) -> None:
    """Why did it die? For a run, for msrun's log folder, for any folder of logs."""
    found = _of_folder(Path(what)) if what and _is_foreign(Path(what)) else _of_run(api.find_run(what, runs_dir))
    if as_json:
        print(json.dumps(found.verdict.to_dict() if found.verdict else None, indent=1))
    elif found.verdict is None:
        print(f"{found.run_id}: {NO_FAILURE.get(found.state, 'no sign of a failure in the logs')}")
    else:
        print(verdict_text(found, sys.stdout.isatty()), end="")


def _is_foreign(path: Path) -> bool:
    return path.is_dir() and not (path / layout.RECORD).is_file()


def _of_run(run: Run) -> RunRecord:
    """A verdict that was given stands; a run that has none, because its launcher was lost, is judged by its logs."""
    found = run.record
    if found.verdict is not None or found.state in ("succeeded", "stopped"):
        return found
    ends = {rank.rank: rank for rank in found.ranks}
    cases = [_with_end(case, ends) for case in read_folder(run.path)]
    return replace(found, verdict=judge(cases))


def _with_end(case: Case, ends: dict[int, RankRecord]) -> Case:
    end = ends.get(case.rank) if case.rank is not None else None
    return case if end is None else replace(case, host=end.host, exit_code=end.exit_code, signal=end.signal)


def _of_folder(path: Path) -> RunRecord:
    cases = read_folder(path)
    if not cases:
        raise RequestError(f"{path}: no logs here (*.log, *.txt). Name the folder that msrun's --log_dir named.")
    verdict: Verdict | None = judge(cases)
    return api.record_of_logs(str(path), verdict)
