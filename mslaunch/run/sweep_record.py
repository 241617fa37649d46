"""sweep.json: the combinations of a sweep, the run of each, and what all runs share."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.schema import SCHEMA_VERSION, parse_record
from mslaunch.documents.typed import make
from mslaunch.errors import (
    AmbiguousRun,
    LaunchedElsewhere,
    MslaunchError,
    NoSuchSweep,
    RecordUnreadable,
    RunsFolderUnwritable,
    SweepAlive,
)
from mslaunch.plan.combinations import Combination
from mslaunch.run import launchers
from mslaunch.run.find import list_all
from mslaunch.run.launchers import Launcher
from mslaunch.run.liveness import queue_of
from mslaunch.run.ownership import become_owner, check_owner, is_own
from mslaunch.run.paths import SweepFolder, is_file
from mslaunch.run.record import LARGEST, is_name
from mslaunch.run.run import Result, Run, save_stopped
from mslaunch.run.writing import why, write_atomically

POLL = 0.1


@dataclass(frozen=True, slots=True)
class SweepMember:
    """The run of one combination."""

    run_id: Annotated[str, is_name]
    assignments: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """What sweep.json holds; there, each run has its values with their types also."""

    sweep_id: str
    started: str
    launcher: Launcher | None
    config: str | None
    config_text: str | None
    flags: Mapping[str, Any]
    script_args: tuple[str, ...]
    varied: tuple[str, ...]
    runs: tuple[SweepMember, ...]

    @property
    def combinations(self) -> tuple[Combination, ...]:
        return tuple(Combination(run.assignments, self.varied) for run in self.runs)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The run of each combination, in the same order."""
        return tuple(run.run_id for run in self.runs)


def read(folder: SweepFolder) -> SweepRecord:
    """Read sweep.json as it stands."""
    name = str(folder.record)
    try:
        raw = parse_record(read_text(folder.record, LARGEST, "surrogateescape", only_files=True), name)
        sweep = make(SweepRecord, raw)
        if not sweep.runs or any(key not in run.assignments for run in sweep.runs for key in sweep.varied):
            raise Unreadable("it lists no runs, or not all values of a run")
    except (OSError, Unreadable) as error:
        raise RecordUnreadable(name, error) from None
    return sweep


def save(folder: SweepFolder, sweep: SweepRecord) -> None:
    """Write sweep.json, with a line for each run."""
    raw = {"schema_version": SCHEMA_VERSION, **asdict(sweep)}
    for run, combination in zip(raw["runs"], sweep.combinations, strict=True):
        run["values"] = combination.values
    runs = ",\n  ".join(json.dumps(run, default=str) for run in raw.pop("runs"))
    text = json.dumps(raw, indent=1, default=str)[:-2] + f',\n "runs": [\n  {runs}\n ]\n}}\n'
    try:
        write_atomically(folder.record, text)
    except OSError as error:
        raise RunsFolderUnwritable(str(folder.path), why(error)) from None


def find(runs_dir: Path, name: str, exactly: bool = False) -> SweepFolder:
    """Find a sweep by its path, its name or, unless `exactly` that, an unambiguous beginning of it."""
    if is_file(SweepFolder(Path(name)).record):
        return SweepFolder(Path(name).resolve())
    sweeps: list[Path] = []
    with suppress(OSError):
        folders = [path for path in runs_dir.iterdir() if not path.is_symlink()]
        sweeps = sorted(path for path in folders if is_file(SweepFolder(path).record))
    matches = [path for path in sweeps if path.name == name]
    if not matches and not exactly:
        matches = [path for path in sweeps if path.name.startswith(name)]
    if len(matches) != 1:
        raise NoSuchSweep(name, str(runs_dir), [path.name for path in matches or sweeps], bool(matches))
    return SweepFolder(matches[0].resolve())


@contextmanager
def locked(folder: SweepFolder) -> Iterator[None]:
    """Hold a sweep while it runs: a second process that wants it is refused. The lock ends with the process."""
    try:
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunsFolderUnwritable(str(folder.path), why(error)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise SweepAlive(folder.sweep_id) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(lock)


def is_under_way(folder: SweepFolder) -> bool:
    """Tell whether a process holds the sweep."""
    try:
        with locked(folder):
            return False
    except SweepAlive:
        return True


def stop(folder: SweepFolder) -> None:
    """Ask a sweep's launcher to stop all its runs, and wait until it has; end what a lost one has left to a queue."""
    check_owner(folder, "stop")
    launcher = read(folder).launcher
    if launcher is not None and is_under_way(folder):
        if not launchers.is_here(launcher):
            raise LaunchedElsewhere(folder.sweep_id, launchers.place_of(launcher), "stop")
        launchers.ask(folder, launcher, "stop")
        while is_under_way(folder):
            time.sleep(POLL)
    left = [run for run in runs_of(folder) if not run.has_ended]
    if left:
        now = left[0].record
        queue, job = queue_of(now), folder.job(now.transport)
        if queue is not None and job.is_file():
            queue.cancel_array(job.read_text(errors="replace").strip())
    for run in left:
        run.stop()
        save_stopped(run.folder, run.record)


def stop_all(places: Sequence[Path]) -> list[tuple[str, str]]:
    """Stop the caller's sweeps and runs that go on, all at once; return each name, and its state or the error.

    One that is not in the first of these folders is called by its path.
    """
    own = [run for run in list_all(places) if is_own(run)]
    sweeps = {sweep.path: sweep for run in own if (sweep := run.sweep)}
    sweeps = {path: sweep for path, sweep in sweeps.items() if is_under_way(sweep)}
    jobs: dict[Path, Callable[[], Result | None]] = {path: partial(stop, sweep) for path, sweep in sweeps.items()}
    for run in own:
        with suppress(RecordUnreadable):
            if run.path.parent not in sweeps and not Run(run).has_ended:
                jobs[run.path] = Run(run).stop
    names = [path.resolve() for path in jobs]
    first = places[0].resolve()
    names = [path.relative_to(first) if path.is_relative_to(first) else path for path in names]
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        return list(zip(map(str, names), pool.map(_outcome, jobs.values()), strict=True))


def _outcome(stop_it: Callable[[], Result | None]) -> str:
    try:
        ended = stop_it()
    except MslaunchError as error:
        return str(error)
    return ended.state if ended else "stopped"


def find_named(places: Sequence[Path], name: str) -> SweepFolder | None:
    """Find the sweep that is called so, or lies there; None where there is none."""
    matches: dict[Path, SweepFolder] = {}
    for place in places:
        with suppress(NoSuchSweep):
            sweep = find(place, name, exactly=True)
            matches[sweep.path] = sweep
    if len(matches) > 1:
        raise AmbiguousRun(name, [str(path) for path in matches])
    return next(iter(matches.values()), None)


def runs_of(folder: SweepFolder) -> list[Run]:
    """Return the runs of a sweep that have begun, in its order."""
    folders = (folder.run(run_id) for run_id in read(folder).run_ids)
    return [Run(run) for run in folders if run.record.is_file()]


def stop_named(places: Sequence[Path], name: str, as_owner: bool = False) -> bool:
    """Stop the sweep that is called so, or lies there; False where there is none. `as_owner`: with its rights."""
    folder = find_named(places, name)
    if folder is None:
        return False
    if as_owner:
        become_owner(folder)
    stop(folder)
    return True
