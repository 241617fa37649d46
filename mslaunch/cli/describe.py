"""Plans and records in words and columns, for people."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from mslaunch.launch.record import RunRecord
from mslaunch.plan.make import describe_process
from mslaunch.plan.model import Plan

LAST_LINES = 10
_RANKS_SHOWN = 4


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first row being their names."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def describe_plan(plan: Plan) -> str:
    """The dry run: what would be started, with which variables and files, and where each setting came from."""
    lines = [
        f"run      {plan.run_id}, in {plan.run_dir}",
        f"job      {plan.world_size} ranks on {plan.device_target}, method {plan.method}, scheduler at {plan.master}",
        f"script   {plan.script}, in {plan.job_dir}",
    ]
    lines += [f"note     {note}" for note in plan.notes]
    lines += ["", "settings"]
    lines += [f"  {name:<12} {source}" for name, source in plan.sources.items() if source != "default"]
    lines += ["", "every process gets"]
    lines += [f"  {name}={value}" for name, value in plan.env.items()]
    lines += [f"  {name}=(taken from the environment at the start)" for name in plan.secrets]
    lines += ["", "files"]
    lines += [f"  {file.path}" for file in plan.files]
    lines += ["", "processes"]
    for process in plan.processes:
        if process.rank is None or process.rank < _RANKS_SHOWN:
            when = {"now": "", "on-import": " (when a rank imports mindspore)", "by-script": " (by the script)"}
            lines.append(f"  {describe_process(process)} on {process.host}{when[process.start]}")
            lines.append(f"    {' '.join(f'{name}={shlex.quote(value)}' for name, value in process.env.items())}")
            lines.append(f"    {shlex.join(process.argv)}")
    if plan.world_size > _RANKS_SHOWN:
        lines.append(f"  ... and ranks {_RANKS_SHOWN} to {plan.world_size - 1} likewise (--json shows all)")
    return "\n".join(lines) + "\n"


def describe_end(record: RunRecord, seconds: float) -> list[str]:
    """Say how a run ended; a failure with everything that is known about it, last."""
    if record.state != "failed" or record.verdict is None:
        return [f"mslaunch: run {record.run_id} {record.state} after {seconds:.1f} s"]
    verdict = record.verdict
    lines = ["", f"mslaunch: run {record.run_id} failed after {seconds:.1f} s"]
    lines += [f"  {line}" for line in describe_verdict(verdict)]
    return lines


def describe_verdict(verdict: dict[str, Any]) -> list[str]:
    who = (
        "no rank is to blame"
        if verdict["rank"] is None
        else f"rank {verdict['rank']} on {verdict['host']} failed first"
    )
    lines = [f"{who}: {verdict['summary'].splitlines()[-1]} ({how_it_ended(verdict['exit_code'], verdict['signal'])})"]
    if verdict["traceback"]:
        lines += verdict["traceback"].rstrip().splitlines()
    elif verdict["log"]:
        lines += [f"| {line}" for line in last_lines(Path(verdict["log"]), LAST_LINES)]
    if verdict["log"]:
        lines.append(f"log: {verdict['log']}")
    return lines


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file of any size."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - (1 << 16)))
            tail = file.read()
    except OSError:
        return []
    return tail.decode("utf-8", "replace").splitlines()[-count:]


def how_it_ended(code: int | None, number: int | None) -> str:
    if number:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return "" if code is None else f"exit code {code}"


def duration(record: RunRecord, now: datetime) -> str:
    end = datetime.fromisoformat(record.ended) if record.ended else now
    seconds = int((end - datetime.fromisoformat(record.started)).total_seconds())
    hours, rest = divmod(max(0, seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"
