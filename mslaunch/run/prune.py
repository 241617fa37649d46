"""Removes runs, or their checkpoints: never one that is alive, tagged keep, another user's, or referred to."""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from mslaunch.checkpoint.sharding.saved_files import Network, SavedStep, files_of_code, files_of_run, networks
from mslaunch.checkpoint.sharding.sets import newest_complete
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.documents.mounts import find_mount
from mslaunch.errors import MslaunchError, RecordUnreadable, RequestError, SweepAlive
from mslaunch.metrics.series import Series
from mslaunch.run import labels, record, sweep_record
from mslaunch.run.disk_usage import entries, measure
from mslaunch.run.find import RUNS_DIR, default_runs_dir, list_runs
from mslaunch.run.liveness import current
from mslaunch.run.metrics_file import Metrics
from mslaunch.run.ownership import check_owner, is_own
from mslaunch.run.paths import RunFolder
from mslaunch.run.writing import point_link
from mslaunch.shared import layout
from mslaunch.shared.guard import processes_with

PRUNED = ".pruned-"  # how the folder of a run is called while it is deleted; the next prune deletes what a kill leaves
CHECKPOINTS = ("keep-best", "drop")
KEEP = "keep"  # the tag of runs that are never removed
MOST_PLANS = 10_000
SLACK = 2.0  # seconds between the line that tells a loss, and when the agent has read it
_RANK = re.compile(rf"{layout.RANK}(\d{{1,6}})")
_PATH_ENDS = re.compile(r"[\s\"'\\,;:=()\[\]{}<>|]+")


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a run must be to be removed; every criterion that is set applies."""

    keep: int | None = None  # the newest so many stay
    ended_before: float | None = None
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """A run must have one of these; a run with tags stays unless one of them is named."""

    def __bool__(self) -> bool:
        return self.keep is not None or self.ended_before is not None or bool(self.states or self.tags)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run, as far as its removal is concerned."""

    name: str  # with its sweep's, where it belongs to one: sweep/1
    state: str
    ended: float
    sweep: str | None = None
    protected: str | None = None
    """Why it must stay in any case: it is alive, another user's, or cannot be read."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The runs to remove, oldest first, and those that fit and stay, with the reason."""

    chosen: tuple[str, ...]
    kept: Mapping[str, str]


def choose(runs: Sequence[Candidate], criteria: Criteria, links: Mapping[str, Collection[str]]) -> Choice:
    """Choose from all runs of a folder, oldest first; `links` has, for each run, those that it refers to.

    The runs of a sweep are removed together or not at all: a resumed sweep would start those that are missing again.
    """
    older = runs if criteria.keep is None else runs[: max(0, len(runs) - criteria.keep)]
    fitting = [run for run in older if _fits(run, criteria)]
    protected = {run.name: run.protected for run in fitting if run.protected}
    chosen = {run.name for run in fitting if not run.protected}
    members: dict[str, list[str]] = {}
    for run in runs:
        if run.sweep:
            members.setdefault(run.sweep, []).append(run.name)
    while held := _held(chosen, links, members):  # what stays may link to what would go
        chosen -= held.keys()
        protected |= held
    return Choice(tuple(run.name for run in runs if run.name in chosen), protected)


def _fits(run: Candidate, criteria: Criteria) -> bool:
    if criteria.states and run.state not in criteria.states:
        return False
    if criteria.tags and not set(criteria.tags) & set(run.tags):
        return False
    return criteria.ended_before is None or run.ended < criteria.ended_before


def _held(
    chosen: Collection[str], links: Mapping[str, Collection[str]], members: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """What of the chosen must stay because of what stays."""
    held: dict[str, str] = {}
    for name, targets in links.items():
        if name not in chosen:
            held |= {target: f"run {name} refers to it" for target in targets if target in chosen}
    for sweep, names in members.items():
        staying = next((name for name in names if name not in chosen), None)
        if staying is not None:
            held |= {name: f"{staying} of sweep {sweep} stays" for name in names if name in chosen}
    return held


@dataclass(frozen=True, slots=True)
class Freed:
    """What was removed of a run, or would be."""

    name: str
    bytes: int
    files: tuple[str, ...] = ()  # the checkpoints, where only those are removed


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune has done, or would do."""

    removed: tuple[Freed, ...]
    kept: dict[str, str]  # runs that fit and stay, and why

    @property
    def bytes(self) -> int:
        return sum(freed.bytes for freed in self.removed)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bytes": self.bytes}


def prune_chosen(runs_dir: Path, criteria: Criteria, checkpoints: str | None = None, dry_run: bool = False) -> Pruned:
    """Remove the runs that fit, or only their checkpoints; with `dry_run` only say what that would be."""
    if not criteria:
        raise RequestError("prune: say which runs: --keep N, --older-than 30d, --state failed or --tag NAME.")
    if checkpoints is not None and checkpoints not in CHECKPOINTS:
        raise RequestError(f"--checkpoints {checkpoints!r}: write keep-best or drop.")
    runs_dir = runs_dir.resolve()
    if not dry_run:
        _delete_leftovers(runs_dir)
    folders = {folder.name: folder for folder in list_runs(runs_dir)}
    candidates = [_candidate(name, folder, criteria.tags) for name, folder in folders.items()]
    choice = choose(candidates, criteria, _links(runs_dir, folders))
    if checkpoints is not None:
        return _prune_checkpoints(choice, folders, criteria.tags, checkpoints == "keep-best", dry_run)
    pruned = _remove_runs(choice, folders, criteria.tags, dry_run)
    if not dry_run and pruned.removed:
        _point_latest(runs_dir)
    return pruned


def _candidate(name: str, folder: RunFolder, tags: Sequence[str]) -> Candidate:
    """What is known of a run; whatever is in doubt protects it."""
    of_sweep = folder.path.parent.name if folder.sweep else None
    try:
        now = current(folder)
        ended = datetime.fromisoformat(now.ended or now.started).timestamp()
    except RecordUnreadable:
        return Candidate(name, "", 0.0, of_sweep, "its record cannot be read")
    own_tags = labels.read(folder).tags
    return Candidate(name, now.state, ended, of_sweep, _protection(folder, now, tags), own_tags)


def _protection(folder: RunFolder, now: record.RunRecord, tags: Sequence[str], holds_sweep: bool = False) -> str | None:
    if now.state not in record.ENDED:
        return f"it is {now.state}"
    if not is_own(folder):
        return "it is another user's"
    try:
        check_owner(folder, "prune")
    except MslaunchError:
        return "a file in it is another user's, or a link"
    if now.state == "lost" and processes_with(f"MSLAUNCH_RUN_DIR={folder.path}"):
        return "processes of it are left; `mslaunch stop` ends them"
    if folder.sweep and not holds_sweep and sweep_record.is_under_way(folder.sweep):
        return "its sweep is under way"
    return _label_protection(folder, tags)


def _label_protection(folder: RunFolder, tags: Sequence[str]) -> str | None:
    """Why the tags of a run protect it; None where it has none, or one of these."""
    try:
        own = labels.read_strictly(folder).tags
    except RecordUnreadable:
        return "its tags cannot be read"
    if KEEP in own:
        return f"it has the tag {KEEP}"
    if own and not set(own) & set(tags):
        return f"it has the tag {own[0]}; --tag {own[0]} includes such runs"
    return None


def _links(runs_dir: Path, folders: dict[str, RunFolder]) -> dict[str, set[str]]:
    """For each run, those that it refers to: in its plans (arguments, variables, checkpoints), and by links."""
    places = {str(folder.path): name for name, folder in folders.items()}
    before: str | None = None
    links: dict[str, set[str]] = {}
    for name, folder in folders.items():
        earlier = takewhile(Path.is_file, map(folder.earlier_plan, range(MOST_PLANS)))
        text = ""
        for path in (folder.plan, *earlier, folder.path / layout.CHECKPOINTS):
            with suppress(OSError, Unreadable):
                text += read_text(path, record.LARGEST_PLAN, "replace", only_files=True) + "\n"
        latest = {f"{place}/{layout.LATEST}": before for place in (runs_dir.name, RUNS_DIR)} if before else {}
        links[name] = find_links(text, name, folders, latest)
        for target in _symbolic_links(folder.path):
            if target.startswith(f"{runs_dir}/"):
                runs = (places.get(str(above)) for above in (Path(target), *Path(target).parents))
                links[name] |= set(filter(None, runs)) - {name}
        before = name
    return links


def _symbolic_links(path: Path) -> Iterable[str]:
    """Where the links of a run's ranks lead; those in code/ lead to the project."""
    for folder in path.glob(f"{layout.RANK}*"):
        for entry in entries(folder):
            with suppress(OSError):
                if entry.is_symlink():
                    yield os.path.normpath(Path(entry.path).parent / os.readlink(entry.path))  # noqa: PTH115


def find_links(text: str, own: str, names: Collection[str], latest: Mapping[str, str]) -> set[str]:
    """Return the runs that a text names by a path: a plan with its arguments, variables and files.

    Only whole parts of paths count, whatever stands before them: a folder of runs may be reached by several names.
    `latest` has what a path such as mslaunch-runs/latest meant then.
    """
    runs = set()
    for word in _PATH_ENDS.split(text):
        if "/" not in word:
            continue
        parts = [part for part in word.split("/") if part]
        for part, following in zip_longest(parts, parts[1:], fillvalue=""):
            pair = f"{part}/{following}"
            runs |= {name for name in (part, pair, latest.get(pair, "")) if name in names}
    return runs - {own}


def _remove_runs(choice: Choice, folders: dict[str, RunFolder], tags: Sequence[str], dry_run: bool) -> Pruned:
    removed, staying = [], dict(choice.kept)
    with ExitStack() as held:
        locked: dict[Path, str | None] = {}
        for name in choice.chosen:
            folder = folders[name]
            parent = folder.sweep
            if parent is not None and parent.path not in locked and not dry_run:
                locked[parent.path] = None
                try:
                    held.enter_context(sweep_record.locked(parent))
                except SweepAlive:
                    locked[parent.path] = "its sweep is under way"
                except MslaunchError as error:
                    locked[parent.path] = str(error)
            why = locked.get(folder.path.parent) or _mounted_in(folder.path)
            size = 0 if why else measure(folder.path, only_freed=True)
            if not why and not dry_run:
                why = _remove(folder, tags)
            if why:
                staying[name] = why
            else:
                removed.append(Freed(name, size))
    if not dry_run:
        for path in locked:
            if why := _remove_sweep(path):
                staying[path.name] = why
    return Pruned(tuple(removed), staying)


def _mounted_in(path: Path) -> str | None:
    """Why a folder must not be deleted: deleting would empty what is mounted in it."""
    try:
        place = find_mount(path)
    except OSError as error:
        return f"it cannot be searched for what is mounted in it ({error.strerror})"
    return f"something is mounted at {place}; unmount it first" if place else None


def _remove(folder: RunFolder, tags: Sequence[str]) -> str | None:
    """Remove a run; return why it could not be. It may have come alive since it was looked at: a queue starts runs."""
    hidden = folder.path.with_name(f"{PRUNED}{folder.run_id}-{secrets.token_hex(4)}")
    try:
        before = record.read(folder)
        if why := _protection(folder, current(folder), tags, holds_sweep=True):
            return why
        folder.path.rename(hidden)
    except RecordUnreadable:
        return "another process has removed it" if not folder.path.exists() else "its record cannot be read"
    except OSError as error:
        return f"it could not be renamed ({error.strerror})"
    with suppress(MslaunchError):
        if record.read(RunFolder(hidden)) != before and not folder.path.exists():
            hidden.rename(folder.path)
            return "it has been started meanwhile"
    shutil.rmtree(hidden, ignore_errors=True)
    return f"some of it could not be deleted: {hidden}" if hidden.exists() else None


def _remove_sweep(path: Path) -> str | None:
    """Remove the folder of a sweep whose runs are gone; return why it must stay."""
    if list_runs(path) or not (path / layout.SWEEP).is_file():
        return None
    why = _mounted_in(path)
    with suppress(OSError):
        if not why:
            hidden = path.rename(path.with_name(f"{PRUNED}{path.name}-{secrets.token_hex(4)}"))
            shutil.rmtree(hidden, ignore_errors=True)
    return why


def _delete_leftovers(runs_dir: Path) -> None:
    for place in (runs_dir, *(path for path in runs_dir.glob("*/") if (path / layout.SWEEP).is_file())):
        for path in place.glob(f"{PRUNED}*"):
            if not path.is_symlink() and is_own(RunFolder(path)) and not _mounted_in(path):
                shutil.rmtree(path, ignore_errors=True)


def _prune_checkpoints(
    choice: Choice, folders: dict[str, RunFolder], tags: Sequence[str], keep_best: bool, dry_run: bool
) -> Pruned:
    removed, staying = [], dict(choice.kept)
    for name in choice.chosen:
        folder = folders[name]
        why = _mounted_in(folder.path)
        files = [] if why else surplus(folder, keep_best)
        try:
            if files and not dry_run:
                why = _protection(folder, current(folder), tags)
        except RecordUnreadable:
            why = "its record cannot be read"
        if why:
            staying[name] = why
            continue
        gone, size = [], 0
        for path in files:
            with suppress(OSError):
                status = path.lstat()
                if not dry_run:
                    path.unlink()
                gone.append(str(path.relative_to(folder.path)))
                if status.st_nlink == 1:
                    size += status.st_blocks * 512
        if gone:
            removed.append(Freed(name, size, tuple(gone)))
    return Pruned(tuple(removed), staying)


def surplus(folder: RunFolder, keep_best: bool) -> list[Path]:
    """Return the checkpoint files that can go; with `keep_best` all but the best step of each network."""
    places = {}
    for place in folder.path.glob(f"{layout.RANK}*"):
        rank = _RANK.fullmatch(place.name)
        if rank is not None and not place.is_symlink():
            places[int(rank[1])] = folder.work(int(rank[1]))
    of_code = [file for file in files_of_code(folder.path) if file.step is not None]
    saved = [*networks(files_of_run(places, entries)), *networks(of_code)]
    best = {path for network in saved for path in _files_to_keep(folder, network)} if keep_best else set()
    return sorted(path for network in saved for path in network.files if path not in best)


def _files_to_keep(folder: RunFolder, network: Network) -> Iterable[Path]:
    """The files of the best step, in both formats; all files where no step is whole on all ranks that save."""
    try:
        best = _best(folder, network)
    except RequestError:
        return network.files  # two formats of one step that differ: which one is right is not known
    if best is None:
        return network.files
    same = [saved for saved in network.steps if (saved.run, saved.step) == (best.run, best.step)]
    return (path for saved in same for path in saved.files.values())


def _best(folder: RunFolder, network: Network) -> SavedStep | None:
    """The whole step with the least loss, where that is known of all; else the newest whole one."""
    common = [saved for saved in network.steps if saved.files.keys() == network.ranks]
    loss = _losses(folder, common)
    order = sorted(range(len(common)), key=lambda index: loss[index]) if loss else range(len(common))
    for saved in (common[index] for index in order):
        if not newest_complete(network, folder.path, network.ranks, only=saved, strict=True).faults:
            return saved
    return None


def _losses(folder: RunFolder, steps: list[SavedStep]) -> Mapping[int, float]:
    """The last loss that was printed before each step was saved; nothing unless it is known of all."""
    metrics = Metrics(folder.metrics)
    with suppress(OSError):
        written = [min(path.stat().st_mtime for path in saved.files.values()) for saved in steps]
        ranks = sorted({rank for saved in steps for rank in saved.files})
        sources = [source for rank in ranks for source in metrics.table.sources if source.rank == rank]
        series = [series for source in sources if (series := metrics.table.of(source).get("loss"))]
        losses = {index: loss for index, time in enumerate(written) if (loss := _loss_at(series, time)) is not None}
        metrics.close()
        return losses if len(losses) == len(steps) else {}
    return {}


def _loss_at(all_series: list[Series], time: float) -> float | None:
    """Return the last loss that was reported before a time, by the first rank that reported one."""
    for series in all_series:
        at = bisect_right(series.time, time + SLACK) - 1
        if at >= 0 and math.isfinite(series.value[at]):
            return series.value[at]
    return None


def _point_latest(runs_dir: Path) -> None:
    """Have the caller's `latest` link point to the newest run that is left."""
    for name in (layout.LATEST, layout.latest_of(os.geteuid())):
        link = runs_dir / name
        with suppress(OSError):
            if link.is_symlink() and not link.exists() and link.lstat().st_uid == os.geteuid():
                own = [run for run in list_runs(runs_dir) if is_own(run)]
                if own:
                    point_link(link, own[-1].name.partition("/")[0])
                else:
                    link.unlink()


def prune(
    runs_dir: str | os.PathLike[str] | None = None,
    keep: int | None = None,
    ended_before: float | None = None,
    states: Sequence[str] = (),
    checkpoints: str | None = None,
    dry_run: bool = False,
    tags: Sequence[str] = (),
) -> Pruned:
    """Remove the runs of a folder that fit all that is given, or with `checkpoints` (keep-best, drop) only those.

    Runs that are alive, another user's, tagged keep, or that another run refers to stay, and runs with other tags
    unless `tags` has one of theirs. `ended_before` is in seconds since 1970.
    """
    folder = Path(runs_dir or default_runs_dir(os.environ))
    return prune_chosen(folder, Criteria(keep, ended_before, tuple(states), tuple(tags)), checkpoints, dry_run)
