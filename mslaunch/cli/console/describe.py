"""Plans and records in words and columns, for people."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.cli.console.tables import Narrowing, columns
from mslaunch.diagnose.verdict import Verdict, signal_name
from mslaunch.shared import layout
from mslaunch.shared.secret_names import masked
from mslaunch.text import byte_count, counted, cut_line, elapsed_words, first_line, named_ranks, plain, shorten

if TYPE_CHECKING:
    from mslaunch.plan.model import Plan
    from mslaunch.run.labels import Labels
    from mslaunch.run.record import OutputRecord, RunRecord


LAST_LINES = 10
OUTPUTS_SHOWN = 4
_LINE_LIMIT = 500
_LINES_SHOWN = 80  # of a traceback; the record has more of it, and the log all
_FRAME = '  File "'
_FATAL = "Fatal Python error: "
_RANKS_SHOWN = 4
_STEPS_SHOWN = 8


def state_words(record: RunRecord) -> str:
    """Return a run's state; between two attempts, which one it waits for."""
    ended = record.attempts[-1].ended if record.attempts and record.state == "running" else None
    if ended is None:
        return record.state
    last = datetime.fromisoformat(ended)
    for rank in record.ranks:  # are they still those of the attempt that ended last?
        if not rank.ended or datetime.fromisoformat(rank.ended) > last:
            return record.state
    return f"waiting for attempt {record.attempt_of() + 1}"


def describe_plan(plan: Plan, defaults: bool = False) -> str:
    """The dry run: what would be started, with which variables and files, and where each setting came from."""
    ranks, program = counted(plan.world_size, "rank"), plan.program
    python_env = "".join(f"{name}={value} " for name, value in program.python_env.items())
    command = f"{program.kind} {python_env}{shlex.join((program.what, *program.args))}"
    lines = [
        f"run      {plan.run_id}, in {plan.run_dir}",
        f"job      {ranks} on {plan.device_target}, method {plan.method}, scheduler at {plan.master}",
        f"program  {command}, in {plan.job_dir}",
    ]
    lines += [f"note     {note}" for note in plan.notes]
    lines += ["", "settings" if defaults else "settings that were given (-v shows the defaults)"]
    for name, source in plan.sources.items():
        text = source.replace(", from default", " (default)")
        if defaults or not text.endswith(" (default)"):
            lines.append(f"  {name:<16} {text}")
    lines += ["", "every process gets"]
    lines += [f"  {name}={masked(name, value)}" for name, value in plan.env.items()]
    lines += [f"  {name}=(written nowhere; sent to the ranks at the start)" for name in plan.secrets]
    lines += ["", "files"]
    lines += [f"  {file.path}" for file in plan.files]
    lines += ["", "processes"]
    for process in plan.processes:
        if process.rank is None or process.rank < _RANKS_SHOWN:
            when = {"now": "", "on-import": " (when a rank imports mindspore)", "by-script": " (by the script)"}
            name = process.role if process.rank is None else f"rank {process.rank}"
            lines.append(f"  {name} on {process.host}{when[process.start]}")
            env = (f"{name}={shlex.quote(masked(name, value))}" for name, value in process.env.items())
            lines.append(f"    {' '.join(env)}")
            lines.append(f"    {shlex.join(process.argv)}")
    if plan.world_size > _RANKS_SHOWN:
        lines.append(f"  ... and ranks {_RANKS_SHOWN} to {plan.world_size - 1} likewise (--json shows all)")
    for file in plan.files:
        if file.path.endswith(".sbatch"):
            lines += ["", file.path, *(f"  {line}".rstrip() for line in file.content.splitlines())]
    return "\n".join(lines) + "\n"


def describe_end(record: RunRecord, seconds: float | None = None) -> str:
    """Say how a run ended, in one line; `seconds` where it took another time here than the record says."""
    if seconds is None:
        seconds = record.seconds_taken(datetime.now().astimezone())
    tries = f", attempt {record.attempt_of() + 1}" if record.attempts else ""
    return f"run {record.run_id} {record.state} after {seconds:.1f} s{tries}"


def describe_attempts(record: RunRecord) -> str:
    """Say which attempt this is and how the earlier ones ended; nothing where there was one only."""
    if not record.attempts:
        return ""
    rows = [("ATTEMPT", "ENDED", "CODE", "WHY")]
    rows += [_attempt(past.attempt, past.ended, past.exit_code, past.verdict, "") for past in record.attempts]
    rows.append(_attempt(record.attempt_of(), record.ended, record.exit_code, record.verdict, state_words(record)))
    return columns(rows, Narrowing(optional=("CODE",), texts={"WHY": shorten})) + "\n"


def _attempt(
    number: int, ended: str | None, code: int | None, verdict: Verdict | None, otherwise: str
) -> tuple[str, str, str, str]:
    """Describe one attempt in a row; people count attempts from 1."""
    when = f"{datetime.fromisoformat(ended).astimezone():%m-%d %H:%M:%S}" if ended else ""
    who = "" if verdict is None or verdict.rank is None else f"rank {verdict.rank}: "
    why = otherwise if verdict is None else who + first_line(verdict.summary, 100)
    return str(number + 1), when, "" if code is None else str(code), why


def describe_warnings(record: RunRecord) -> list[str]:
    """Say why the result of a run is doubtful, whatever its state."""
    return [f"warning: {warning.text}" for warning in record.warnings]


def describe_outputs(record: RunRecord, run_dir: str) -> str:
    """Say what the ranks have written, and where, the largest first."""
    largest = ", ".join(_output_words(output, record.world_size) for output in record.outputs[:OUTPUTS_SHOWN])
    more = len(record.outputs) - OUTPUTS_SHOWN
    rest = f" and {more} more (`mslaunch outputs` lists them)" if more > 0 else ""
    return f"outputs in {run_dir}: {largest}{rest}"


def _output_words(output: OutputRecord, world_size: int) -> str:
    size = byte_count(output.bytes)
    if output.files > 1:
        size = f"{counted(output.files, 'file')}, {size}"
    if not output.ranks:
        return plain(f"{output.path} ({size})")
    if output.ranks.isdigit():
        return plain(f"{layout.RANK}{output.ranks}/{output.path} ({size})")
    which = "" if output.ranks == f"0-{world_size - 1}" else f", ranks {output.ranks}"
    return plain(f"{layout.RANK}*/{output.path} ({size}{which})")


def describe_verdict(record: RunRecord, above: Collection[str] = ()) -> list[str]:
    """Say everything that is known about the first failure: who, what, why, and where to read on.

    Of a traceback whose lines are all among those `above` on the screen, only the last frame is shown.
    """
    verdict = record.verdict
    if verdict is None:
        return []
    from mslaunch.cli.console.last_lines import other_lines

    lines = [_who(record, verdict), *_some(verdict.summary.splitlines()[: 1 if verdict.traceback else None])]
    for tie in verdict.ties:
        what = first_line(tie.summary)
        if what == first_line(verdict.summary):
            what = "the same error"
        lines.append(f"or {named_ranks(tie.ranks)}, too close in time to tell: {what}")
    if verdict.traceback:
        traceback = _unless_above(verdict.traceback.rstrip().splitlines(), above)
        lines += _some(traceback[1:]) if traceback[:1] == [verdict.summary] else ["", *_some(traceback)]
    if log_lines := other_lines(verdict):
        lines += ["", "The last lines of its log:", *(f"  {line}" for line in log_lines[-LAST_LINES:])]
    lines.append("")
    if verdict.advice:
        lines.append(f"advice: {verdict.advice}")
    return [plain(cut_line(line, _LINE_LIMIT)) for line in lines] + [plain(line) for line in _read_on(verdict)]


def _unless_above(traceback: list[str], above: Collection[str]) -> list[str]:
    frames = [at for at, line in enumerate(traceback) if line.startswith(_FRAME)]
    if not frames or not set(traceback) <= set(above):
        return traceback
    heading = "Its last frame (the whole traceback is above):"
    if traceback[0].startswith(_FATAL):  # faulthandler writes the last frame first
        return [heading, traceback[frames[0]]]
    return [heading, *traceback[frames[-1] :]]


def _read_on(verdict: Verdict) -> list[str]:
    """Say where more is to be found, and who else is concerned; paths are never cut."""
    from mslaunch.diagnose.waiting.chain import peer_words

    lines, chain = [], verdict.chain
    if len(chain) > _STEPS_SHOWN:  # the record has all
        chain = (*chain[: _STEPS_SHOWN // 2], *chain[-_STEPS_SHOWN // 2 :])
    for step in chain:
        where = f"{step.log}:{step.line}" if step.log and step.line else step.log or "no log of it is here"
        lines.append(f"evidence: {peer_words(step)}, {where}")
    if verdict.log:
        lines.append(f"log:    {verdict.log}" + (f", line {verdict.line}" if verdict.line else ""))
    if verdict.traceback and verdict.log:
        code = Path(verdict.log).parent.parent / layout.CODE
        with suppress(OSError):  # a record may name anything
            lines += [f"code:   {code}, the files as they ran"] if code.is_dir() else []
    tied = {rank for tie in verdict.ties for rank in tie.ranks}
    if later := [rank for rank in verdict.also_failed if rank not in tied]:
        lines.append(f"failed too: {named_ranks(later)}")
    if verdict.victims and verdict.chain:
        lines.append(f"victims: {named_ranks(verdict.victims)}, waiting for it")
    elif verdict.victims and verdict.rank is not None:
        lines.append(f"victims: {named_ranks(verdict.victims)}, stopped because of it")
    return lines


def _some(lines: list[str]) -> list[str]:
    """Return the first and the last of too many lines."""
    if len(lines) <= _LINES_SHOWN:
        return lines
    half = _LINES_SHOWN // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]


def _who(record: RunRecord, verdict: Verdict) -> str:
    from mslaunch.diagnose.waiting.chain import END_OF_WAITING, peer_words

    ended = how_it_ended(verdict.exit_code, verdict.signal)
    if verdict.rank is None and verdict.chain:
        return f"Look first at: {peer_words(verdict.chain[-1])}"
    if verdict.rank is None:
        return f"No rank is to blame ({ended})" if ended else "No rank is to blame"
    device = next((r.device_id for r in record.ranks if r.rank == verdict.rank), None)
    if device is None:
        device = next((step.device for step in verdict.chain if step.rank == verdict.rank), None)
    parts = [f"rank {verdict.rank}", *([f"host {verdict.host}"] if verdict.host else [])]
    parts += [f"device {device}"] if device is not None else []
    heading = "First to fail"
    if verdict.cause in END_OF_WAITING:
        heading = "Look first at"
    elif verdict.cause == "exit skew":
        heading, ended = "Ended too early", how_it_ended(0, None)
    return f"{heading}: {', '.join(parts)}" + (f" ({ended})" if ended else "")


def how_it_ended(code: int | None, number: int | None) -> str:
    if number:
        return signal_name(number)
    return "" if code is None else f"exit code {code}"


def duration(record: RunRecord, now: datetime) -> str:
    return elapsed_words(record.seconds_taken(now))


def describe_labels(labels: Labels) -> str:
    """One line for the tags and one for each note; nothing where there are none."""
    lines = [f"tags: {', '.join(labels.tags)}"] if labels.tags else []
    for note in labels.notes:
        try:
            when = f"{datetime.fromisoformat(note.time).astimezone():%Y-%m-%d %H:%M}"
        except (ValueError, OverflowError, OSError):  # a file may hold anything
            when = "-"
        lines.append(f"{when} {' '.join(note.text.split())}")
    return "".join(f"{plain(line)}\n" for line in lines)
