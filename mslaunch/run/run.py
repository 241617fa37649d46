"""One run, past or present: how it stands, what it printed, and how to wait for it or stop it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mslaunch.diagnose.verdict import Verdict
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Stamp, Unreadable, open_file, stamp_of
from mslaunch.documents.schema import RunStatus
from mslaunch.documents.typed import make
from mslaunch.errors import LaunchedElsewhere, MslaunchError, NotReadyError, RequestError, signal_code
from mslaunch.metrics.rows import Number, Source
from mslaunch.metrics.series import SeriesTable
from mslaunch.plan.model import Plan
from mslaunch.run import labels, launchers, ownership
from mslaunch.run.events import POLL, RunEnded, RunEvent, follow_events, read_until
from mslaunch.run.labels import Labels
from mslaunch.run.liveness import current, job_of, queue_of
from mslaunch.run.logs import TimedLog
from mslaunch.run.metrics_file import Metrics, last_table, last_values
from mslaunch.run.paths import RunFolder, earlier_path
from mslaunch.run.record import ENDED, RankRecord, RunRecord, iso, read, read_plan, save
from mslaunch.shared import work_folder
from mslaunch.shared.follow import Follower
from mslaunch.shared.guard import end_run, processes_with
from mslaunch.transports.base import JobQueue

LOST_PATIENCE = 5.0
STACKS_SECONDS = 30.0
STOP_MARGIN = 20.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    run_id: str
    path: Path
    state: str
    exit_code: int | None
    verdict: Verdict | None
    ranks: tuple[RankRecord, ...]

    @property
    def succeeded(self) -> bool:
        return self.state == "succeeded"


@dataclass(frozen=True, slots=True)
class Output:
    """A file that a rank has written, or a folder of files: its path ends in a slash."""

    rank: int | None  # None for what lies in code/, which all ranks share
    path: str
    files: int
    bytes: int


class JobFailed(MslaunchError):
    """A job that was run from Python did not succeed; `result` and `verdict` tell more."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.verdict = result.verdict
        self.exit_code = result.exit_code or 1
        super().__init__(*_describe_end(result).split("\n"))

    def __reduce__(self) -> tuple[type[JobFailed], tuple[Result]]:
        return JobFailed, (self.result,)


def _describe_end(result: Result) -> str:
    verdict = result.verdict
    if verdict is None:
        return f"run {result.run_id} {_STATES[result.state]}. See {result.path}."
    who = f"rank {verdict.rank}: " if verdict.rank is not None else ""
    advice = f" {verdict.advice}" if verdict.advice else ""
    traceback = f"\n\n{verdict.traceback.rstrip()}" if verdict.traceback else ""
    return f"run {result.run_id} failed: {who}{verdict.summary.rstrip('.')}.{advice} See {result.path}.{traceback}"


_STATES = {
    "queued": "is queued",
    "running": "has not ended",
    "succeeded": "succeeded",
    "failed": "failed",
    "stopped": "was stopped",
    "lost": "was lost: its launcher is gone",
}


class Run:
    """A run in its folder. As a context manager it stops the run when the block is left."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._last_read: tuple[Stamp, RunRecord] | None = None

    def __repr__(self) -> str:
        return f"<mslaunch.Run {self.run_id}>"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_ended:
            self.stop()

    @property
    def run_id(self) -> str:
        return self.folder.run_id

    @property
    def name(self) -> str:
        """What the run is called beside others: its id, after its sweep's where it belongs to one."""
        return self.folder.name

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def record(self) -> RunRecord:
        """Everything that is known about the run now."""
        return current(self.folder, self._read)

    def _read(self, folder: RunFolder) -> RunRecord:
        """Read run.json if it has changed: 10,000 ranks take 0.4 s to parse, and programs look ten times a second."""
        stamp = stamp_of(folder.record)  # before reading: what is written meanwhile is read next time
        if self._last_read is not None and self._last_read[0] == stamp:
            return self._last_read[1]
        record = read(folder)
        self._last_read = None
        if stamp is not None and record.state not in ENDED:  # nobody waits for one that has ended
            self._last_read = stamp, record
        return record

    @property
    def state(self) -> RunStatus:
        """queued, running, succeeded, failed, stopped or lost."""
        return self.record.state

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def plan(self) -> Plan:
        return read_plan(self.folder)

    @property
    def result(self) -> Result:
        """How the run stands now, or ended."""
        now = self.record
        return Result(now.run_id, self.path, now.state, now.exit_code, now.verdict, now.ranks)

    @property
    def labels(self) -> Labels:
        """The tags and notes of the run."""
        return labels.read(self.folder)

    def label(self, note: str | None = None, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Labels:
        """Add a note and tags, and remove tags; return what the run has now."""
        return labels.label(self.folder, note, add, remove)

    def export_csv(self, file: str | os.PathLike[str]) -> int:
        """Write the metrics as CSV, a line for each number; `-` is standard output. Return how many rows."""
        from mslaunch.run import export

        return export.export_csv(self.folder, os.fspath(file))

    def export_tensorboard(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the metrics as TensorBoard's event files; return them."""
        from mslaunch.run import export

        return export.export_tensorboard(self.folder, os.fspath(folder))

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended and return how; TimeoutError after so many seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.has_ended:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"{self.run_id} has not ended after {timeout:g} s")
            time.sleep(POLL)
        return self.result

    def events(self) -> Iterator[RunEvent]:
        """Yield what happens, from the start of the run to its end."""
        yield from follow_events(self.folder, lambda: self.has_ended)
        now = self.record
        yield RunEnded(now.state, now.exit_code)

    @property
    def queue_job(self) -> str | None:
        """What a queue calls the run's job, in words; None where no queue runs it."""
        now = self.record
        queue, job = queue_of(now), job_of(self.folder, now)
        return f"{queue.label} job {job}" if queue and job else None

    def follow_log(self, rank: int | None) -> Follower:
        """A reader of a rank's log as it grows; None stands for the scheduler's."""
        return Follower(str(self.folder.scheduler_log if rank is None else self.folder.log(rank)))

    def timed_log(self, rank: int | None, earlier: int | None = None) -> TimedLog:
        """A rank's log with the times of its lines, of the last attempt or an earlier one; None is the scheduler."""
        paths = [self.folder.scheduler_log]
        if rank is not None:
            paths = [self.folder.log(rank), self.folder.log_times(rank)]
        if earlier is not None:
            paths = [earlier_path(path, earlier) for path in paths]
        return TimedLog(rank, *paths)

    def follow_launcher(self) -> Follower:
        """A reader of what a detached launcher, or one in a queue's job, prints."""
        return Follower(str(self.folder.launcher_log))

    def save(self, record: RunRecord) -> None:
        """Keep a record of how the run ended, where nobody else could."""
        save(self.folder, record)

    def logs(self, rank: int = 0, follow: bool = False) -> Iterator[str]:
        """Yield the lines that a rank has printed; with `follow`, until the run has ended."""
        world = self.record.world_size
        if not 0 <= rank < world:
            raise RequestError(f"rank {rank} is not in {self.run_id}, which has ranks 0 to {world - 1}.")
        return self._lines(self.follow_log(rank), follow)

    def _lines(self, follower: Follower, follow: bool) -> Iterator[str]:
        with closing(follower):
            yield from read_until(lambda: not follow or self.has_ended, follower, follower.read)
            yield from follower.rest()

    def outputs(self) -> list[Output]:
        """Return what the ranks have written here: files, and folders with their number of files."""
        rows = work_folder.outputs(str(self.path), [rank.rank for rank in self.record.ranks], self.plan.workdir)
        outputs = []
        for row in rows:
            folder = self.path if row["rank"] is None else self.folder.rank(row["rank"])
            outputs.append(Output(row["rank"], f"{folder}/{row['path']}", row["files"], row["bytes"]))
        return outputs

    def metrics(self) -> Metrics:
        """Return the numbers of the run over time, as far as they are known now; its `update()` reads on."""
        return Metrics(self.folder.metrics)

    def last_numbers(self) -> dict[Source, dict[str, Number]]:
        """Return the last numbers of every rank, host and device; quicker than all of them."""
        return last_values(self.folder.metrics, self.record.world_size)

    def last_table(self) -> SeriesTable:
        """Return the newest numbers with their times, the last steps among them."""
        return last_table(self.folder.metrics, self.record.world_size, with_steps=True)

    def stop(self) -> Result:
        """Stop the run, and wait until nothing of it is left."""
        ownership.check_owner(self.folder, "stop")
        _stop(self.folder, self.plan.limits.grace + STOP_MARGIN)
        return self.result

    def stacks(self) -> list[str]:
        """Return where the ranks of a running job stand, grouped."""
        ownership.check_owner(self.folder, "stacks")
        record = self.record
        if record.state != "running" or record.launcher is None:
            raise RequestError(
                f"{record.run_id} is not running ({record.state}). Stacks can be taken of a running job only."
            )
        if not launchers.is_here(record.launcher):
            raise LaunchedElsewhere(record.run_id, launchers.place_of(record.launcher), "stacks")
        before = self.folder.events.stat().st_size
        launchers.ask(self.folder, record.launcher, "stacks")
        for _ in _ticks(STACKS_SECONDS):
            with open_file(self.folder.events) as file:
                file.seek(before)
                for groups in stacks_in(file.read()):
                    return groups
        raise NotReadyError(
            f"{record.run_id}: no stacks came in {STACKS_SECONDS:.0f} s. See {self.path}/rank_*/stack.txt."
        )


def stacks_in(events: bytes) -> Iterator[list[str]]:
    """Yield the groups of stacks in whole lines of events.jsonl; a line that is not an event is left out."""
    for line in events.split(b"\n")[:-1]:
        if b"stacks-taken" in line:
            with suppress(Unreadable):
                yield list(make(_StacksTaken, parse_json(line)).groups)


@dataclass(frozen=True, slots=True)
class _StacksTaken:
    ev: Literal["stacks-taken"]
    groups: tuple[str, ...]


def _stop(folder: RunFolder, wait: float) -> None:
    record = current(folder)
    queue, job, launcher = queue_of(record), job_of(folder, record), record.launcher
    if record.state not in ENDED and queue is not None and job is not None:
        _stop_job(folder, queue, job, wait)
        return
    if record.state not in ENDED and launcher is not None and not launchers.is_here(launcher):
        raise LaunchedElsewhere(folder.run_id, launchers.place_of(launcher), "stop")
    asked_pid = None
    for _ in _ticks(wait):
        record = current(folder)
        if record.state in ENDED:
            _end_what_is_left(folder)
            launchers.receive(folder)  # nobody will see these requests any more
            return
        launcher = record.launcher
        if record.state == "running" and launcher and launcher.pid != asked_pid:
            asked_pid = launcher.pid
            launchers.ask(folder, launcher, "stop")
    who = f"Its launcher is pid {launcher.pid}; try again." if launcher else "Its record names no launcher."
    raise NotReadyError(f"{folder.run_id} has not stopped after {wait:.0f} s. {who}")


def _stop_job(folder: RunFolder, queue: JobQueue, job: str, wait: float) -> None:
    """Ask the queue to end a run's job; kill one that does not end."""
    queue.cancel(job)
    for end in (queue.kill, None):
        for _ in _ticks(wait):
            record = current(folder)
            if record.state in ENDED:
                save_stopped(folder, record)
                return
        if end:
            end(job)
    raise NotReadyError(
        f"{folder.run_id} has not stopped after {2 * wait:.0f} s: see `{queue.show_command(job)}`; try again."
    )


def save_stopped(folder: RunFolder, current_record: RunRecord) -> None:
    """Record how a cancelled run ended: its queue forgets it, and its launcher may not have begun."""
    record = read(folder)
    if record.state not in ENDED:
        with suppress(OSError):
            save(folder, record.end("stopped", current_record.ended or iso(time.time()), signal_code(signal.SIGTERM)))


def _end_what_is_left(folder: RunFolder) -> None:
    """End the ranks of a lost run if its agent, which does so, does not get to it."""
    path = str(folder.path.resolve())
    for _ in _ticks(LOST_PATIENCE):
        if not processes_with(f"MSLAUNCH_RUN_DIR={path}"):
            return
    end_run(path)


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)
