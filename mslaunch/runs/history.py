"""Runs, past and present: finding them by name, asking how they stand, stopping them."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, open_file
from mslaunch.documents.typed import make
from mslaunch.errors import AmbiguousRun, LaunchedElsewhere, NoSuchRun, NotReadyError, RequestError, signal_code
from mslaunch.runs import identity, ownership, record, requests
from mslaunch.runs.liveness import current, job_of, queue_of
from mslaunch.runs.paths import RunFolder, SweepFolder, is_file, runs_root
from mslaunch.shared import layout
from mslaunch.shared.guard import end_run, processes_with
from mslaunch.transports.base import JobQueue

LOST_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class _StacksTaken:
    ev: Literal["stacks-taken"]
    groups: tuple[str, ...]


def list_runs(runs_dir: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first; what another user keeps closed is not among them."""
    try:
        if not runs_dir.is_dir():
            return []
        os.scandir(runs_dir).close()
    except OSError as error:
        raise NotReadyError(
            f"{runs_dir}: the folder of runs cannot be read ({error.strerror}). Name another with --runs-dir."
        ) from None
    return sorted(_runs_in(runs_dir), key=_age)


def _age(folder: RunFolder) -> tuple[int, str]:
    return _made(folder), folder.run_id


def _runs_in(place: Path) -> Iterator[RunFolder]:
    """The runs in a folder, and those of the sweeps in it; a name with a dot is no run's, or one that is removed."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if _changed(entry.path, layout.RECORD) is not None:
                yield RunFolder(place / entry.name)
            elif _changed(entry.path, layout.SWEEP) is not None:
                yield from _runs_in(place / entry.name)


def _changed(folder: str, name: str) -> int | None:
    """When a file was written; None where there is none, or it may not be looked at."""
    try:
        found = os.stat(f"{folder}/{name}")  # noqa: PTH116 -- a third of the time, and there may be thousands of runs
    except OSError:
        return None
    return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None


def _made(folder: RunFolder) -> int:
    path = str(folder.path)
    first = _changed(path, layout.earlier_name(layout.PLAN, 0))
    return (first if first is not None else _changed(path, layout.PLAN)) or 0


def list_all(places: Sequence[Path]) -> list[RunFolder]:
    """Return the runs of several folders, oldest first; of those after the first, what cannot be read is left out."""
    first, *others = places
    found = list_runs(first)
    for place in others:
        with suppress(NotReadyError):
            found += list_runs(place)
    return sorted(found, key=_age) if others else found


def find_run(places: Sequence[Path], name: str | None) -> RunFolder:
    """Find a run by its path, its name or an unambiguous part of it: a beginning outweighs any other.

    Where none is named it is the caller's newest, or the newest of all where the caller has none.
    """
    if name and is_file(Path(name) / layout.RECORD):
        return RunFolder(Path(name).resolve())
    if name and "/" in name and is_file(SweepFolder(Path(name)).record):
        sweep = Path(name).resolve()
        raise RequestError(f"{name}: a sweep. Name one of its runs, for example {sweep.name}/1.")
    runs = list_all(places)
    where = ", ".join(str(place) for place in places)
    known = [run.name for run in runs]
    if name and "/" in name and not any(name in run for run in known):
        raise RequestError(f"{name}: neither a run nor a folder of logs. `mslaunch ps` lists the runs.")
    if not runs:
        raise NoSuchRun(name or layout.LATEST, where, known)
    if name in (None, layout.LATEST):
        return ([run for run in runs if ownership.is_own(run)] or runs)[-1]
    matches = _called(runs, str(name))
    if not matches:
        raise NoSuchRun(str(name), where, known)
    if len(matches) > 1:
        several = len({runs_root(run.path.parent) for run in matches}) > 1
        raise AmbiguousRun(str(name), [str(run.path.resolve()) if several else run.name for run in matches])
    return matches[0]


def _called(runs: list[RunFolder], name: str) -> list[RunFolder]:
    """The runs that a name fits: exactly, else from its beginning, else anywhere."""
    for fits in (str.__eq__, str.startswith, str.__contains__):
        if name and (found := [run for run in runs if fits(run.name, name)]):
            return found
    return []


def stop(folder: RunFolder, wait: float) -> record.RunRecord:
    """Ask a run's launcher to stop it, and wait until it has."""
    now = current(folder)
    queue, job = queue_of(now), job_of(folder, now)
    if now.state not in record.ENDED and queue is not None and job is not None:
        return _stop_job(folder, queue, job, wait)
    launcher = now.launcher
    if now.state not in record.ENDED and launcher is not None and not identity.is_here(launcher):
        raise LaunchedElsewhere(folder.run_id, identity.place_of(launcher), "stop")
    asked = None
    for _ in _ticks(wait):
        now = current(folder)
        if now.state in record.ENDED:
            _end_what_is_left(folder)
            requests.withdraw(folder)
            return now
        launcher = now.launcher
        if now.state == "running" and launcher and launcher.pid != asked:
            asked = launcher.pid
            requests.ask(folder, launcher, "stop")
    who = f"Its launcher is pid {launcher.pid}; try again." if launcher else "Its record names no launcher."
    raise NotReadyError(f"{folder.run_id} has not stopped after {wait:.0f} s. {who}")


def _stop_job(folder: RunFolder, queue: JobQueue, job: str, wait: float) -> record.RunRecord:
    """Ask the queue to end a run's job; one that does not end is killed."""
    queue.cancel(job)
    for end in (queue.kill, None):
        for _ in _ticks(wait):
            now = current(folder)
            if now.state in record.ENDED:
                return save_stopped(folder, now)
        if end:
            end(job)
    raise NotReadyError(
        f"{folder.run_id} has not stopped after {2 * wait:.0f} s: see `{queue.show_command(job)}`; try again."
    )


def save_stopped(folder: RunFolder, now: record.RunRecord) -> record.RunRecord:
    """Record how a cancelled run ended: its queue forgets it, and its launcher may not have begun."""
    stored = record.read(folder)
    if stored.state in record.ENDED:
        return now
    stopped = stored.end("stopped", now.ended or record.iso(time.time()), signal_code(signal.SIGTERM))
    with suppress(OSError):
        record.save(folder, stopped)
    return stopped


def _end_what_is_left(folder: RunFolder) -> None:
    """The agent of a lost run ends its ranks by itself; should it not get to it, this does."""
    mark = f"MSLAUNCH_RUN_DIR={folder.path.resolve()}"
    for _ in _ticks(LOST_PATIENCE):
        if not processes_with(mark):
            return
    end_run(str(folder.path.resolve()))


def _ticks(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.05)


def stacks_taken(folder: RunFolder, seen: int, seconds: float) -> Iterator[list[str]]:
    """Yield the groups of stacks that are recorded after the first `seen` bytes of events, for so many seconds."""
    for _ in _ticks(seconds):
        with open_file(folder.events) as file:
            file.seek(seen)
            yield from groups_in(file.read())


def groups_in(events: bytes) -> Iterator[list[str]]:
    """Yield the groups of stacks in whole lines of events.jsonl; a line that is no event is left out."""
    for line in events.split(b"\n")[:-1]:
        if b"stacks-taken" in line:
            with suppress(Unreadable):
                yield list(make(_StacksTaken, parse_json(line)).groups)
