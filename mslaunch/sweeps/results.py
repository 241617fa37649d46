"""How the runs of a sweep stand and ended: what its table shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mslaunch.diagnose.verdict import Verdict
from mslaunch.errors import MslaunchError, RecordUnreadable
from mslaunch.metrics.progress import short
from mslaunch.run.liveness import current
from mslaunch.run.metrics_file import last_values
from mslaunch.run.paths import RunFolder
from mslaunch.run.record import ENDED
from mslaunch.run.run import Result
from mslaunch.sweeps.planning import Sweep
from mslaunch.text import first_line


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One combination and how its run ended."""

    index: int
    values: Mapping[str, Any]
    typed: Mapping[str, str]
    """The values that differ between runs, as they were typed."""
    name: str
    """What `mslaunch status` takes: SWEEP/RUN."""
    result: Result
    seconds: float | None = None
    loss: str | None = None

    def to_dict(self) -> dict[str, Any]:
        result = self.result
        return {
            "values": self.values,
            "state": result.state,
            "exit_code": result.exit_code,
            "seconds": self.seconds,
            "loss": _number(self.loss),
            "run": self.name,
            "run_dir": str(result.path),
            "why": why(result),
        }


def _number(loss: str | None) -> float | str | None:
    try:
        number = float(loss) if loss is not None else None
    except ValueError:
        return loss
    return loss if number is not None and not math.isfinite(number) else number


def why(result: Result) -> str | None:
    """Say why a run failed, in one line."""
    if result.verdict is None:
        return None
    who = f"rank {result.verdict.rank}: " if result.verdict.rank is not None else ""
    return who + first_line(result.verdict.summary)


def result_of(sweep: Sweep, index: int, error: BaseException | None = None) -> SweptRun:
    """Read how a run stands; `error` is why it could not begin."""
    folder = sweep.folder.run(sweep.run_ids[index])
    try:
        now = current(folder)
    except RecordUnreadable:
        now = None
    if now is None or (error is not None and now.state not in ENDED):
        return _swept(sweep, index, _without_record(sweep, index, error))
    result = Result(now.run_id, folder.path, now.state, now.exit_code, now.verdict, now.ranks)
    seconds = None if now.ended is None else round(now.seconds_taken(datetime.now().astimezone()), 3)
    return _swept(sweep, index, result, seconds, _last_loss(folder))


def _without_record(sweep: Sweep, index: int, error: BaseException | None) -> Result:
    run_id = sweep.run_ids[index]
    path = sweep.folder.run(run_id).path
    if error is None:
        return Result(run_id, path, "not started", None, None, ())
    code, summary = 1, repr(error)
    if isinstance(error, MslaunchError):
        code, summary = error.exit_code, str(error)
    return Result(run_id, path, "failed", code, Verdict(exit_code=code, cause="not ready", summary=summary), ())


def _swept(sweep: Sweep, index: int, result: Result, seconds: float | None = None, loss: str | None = None) -> SweptRun:
    combination = sweep.combinations[index]
    typed = {key: combination.typed[key] for key in combination.varied or combination.typed}
    name = f"{sweep.folder.sweep_id}/{sweep.run_ids[index]}"
    return SweptRun(index, combination.values, typed, name, result, seconds, loss)


def _last_loss(folder: RunFolder) -> str | None:
    """The last loss of the first rank that told one, of the last attempt."""
    losses = []
    for source, values in last_values(folder.metrics, 1).items():
        if "loss" in values:
            losses.append((source.attempt, -(source.rank or 0), values["loss"]))
    return short(max(losses)[2]) if losses else None


def exit_code(runs: Sequence[SweptRun]) -> int:
    """0 if all succeeded, else the code of the first that failed by itself, else of the first that did not succeed."""
    wrong = [run.result for run in runs if not run.result.succeeded]
    first = next((result for result in wrong if result.state == "failed"), wrong[0] if wrong else None)
    return 0 if first is None else first.exit_code or 1


def swept_so_far(sweep: Sweep) -> list[SweptRun]:
    """Return how the runs of a sweep stand now."""
    return [result_of(sweep, index) for index in range(len(sweep.combinations))]
