"""Which runs may be removed. Pure: from what is known of each run to a choice, and why others stay."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from mslaunch.checkpoint.sharding.saved_files import Network, SavedStep, files_of_code, files_of_run, networks
from mslaunch.checkpoint.sharding.sets import newest_complete
from mslaunch.errors import RequestError
from mslaunch.metrics.series import Series
from mslaunch.run.disk_usage import entries
from mslaunch.run.metrics_file import Metrics
from mslaunch.run.paths import RunFolder
from mslaunch.shared import layout

_PATH_ENDS = re.compile(r"[\s\"'\\,;:=()\[\]{}<>|]+")


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a run must be to be removed; every criterion that is set applies."""

    keep: int | None = None
    """The newest so many stay."""
    ended_before: float | None = None
    states: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """A run must have one of these; a run with tags stays unless one of them is named."""

    def __bool__(self) -> bool:
        return self.keep is not None or self.ended_before is not None or bool(self.states or self.tags)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run, as far as its removal is concerned."""

    name: str
    """With its sweep's, where it belongs to one: sweep/1."""
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
    fitting = [run for run in _beyond_newest(runs, criteria.keep) if _fits(run, criteria)]
    protected = {run.name: run.protected for run in fitting if run.protected}
    chosen = {run.name for run in fitting if not run.protected}
    members: dict[str, list[str]] = {}
    for run in runs:
        if run.sweep:
            members.setdefault(run.sweep, []).append(run.name)
    changed = True
    while changed:  # what stays may link to what would go
        changed = False
        for name, why in _held(chosen, links, members):
            chosen.discard(name)
            protected[name] = why
            changed = True
    order = [run.name for run in runs if run.name in chosen]
    return Choice(tuple(order), protected)


def _beyond_newest(runs: Sequence[Candidate], keep: int | None) -> Sequence[Candidate]:
    return runs if keep is None else runs[: max(0, len(runs) - keep)]


def _fits(run: Candidate, criteria: Criteria) -> bool:
    if criteria.states and run.state not in criteria.states:
        return False
    if criteria.tags and not set(criteria.tags) & set(run.tags):
        return False
    return criteria.ended_before is None or run.ended < criteria.ended_before


def _held(
    chosen: Collection[str], links: Mapping[str, Collection[str]], members: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """What of the chosen must stay because of what stays."""
    held = []
    for name, targets in links.items():
        if name not in chosen:
            held += [(target, f"run {name} refers to it") for target in targets if target in chosen]
    for sweep, names in members.items():
        staying = next((name for name in names if name not in chosen), None)
        if staying is not None:
            held += [(name, f"{staying} of sweep {sweep} stays") for name in names if name in chosen]
    return held


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


def runs_below(paths: Iterable[str], places: Mapping[str, str], own: str) -> set[str]:
    """Return the runs whose folders hold these paths; `places` has the run of each folder."""
    runs = set()
    for path in paths:
        parts = path.split("/")
        for end in range(len(parts), 1, -1):
            name = places.get("/".join(parts[:end]))
            if name is not None:
                runs.add(name)
                break
    return runs - {own}


SLACK = 2.0  # seconds between the line that tells a loss, and when the agent has read it
_RANK = re.compile(rf"{layout.RANK}(\d{{1,6}})")


def surplus(folder: RunFolder, keep_best: bool) -> list[Path]:
    """Return the checkpoint files that can go; with `keep_best` all but the best step of each network."""
    of_code = [file for file in files_of_code(folder.path) if file.step is not None]
    saved = [*networks(files_of_run(_rank_folders(folder), entries)), *networks(of_code)]
    best = {path for network in saved for path in _files_to_keep(folder, network)} if keep_best else set()
    return sorted(path for network in saved for path in network.files if path not in best)


def _rank_folders(folder: RunFolder) -> dict[int, Path]:
    places = {}
    for place in folder.path.glob(f"{layout.RANK}*"):
        rank = _RANK.fullmatch(place.name)
        if rank is not None and not place.is_symlink():
            places[int(rank[1])] = folder.work(int(rank[1]))
    return places


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
        if newest_complete(network, folder.path, network.ranks, only=saved, strict=True).is_complete:
            return saved
    return None


def _losses(folder: RunFolder, steps: list[SavedStep]) -> Mapping[int, float]:
    """The last loss that was printed before each step was saved; nothing unless it is known of all."""
    metrics = Metrics(folder.metrics)
    with suppress(OSError):
        written = [min(path.stat().st_mtime for path in saved.files.values()) for saved in steps]
        ranks = sorted({rank for saved in steps for rank in saved.files})
        series = [series for rank in ranks for series in _series(metrics, rank)]
        losses = {index: loss for index, time in enumerate(written) if (loss := _loss_at(series, time)) is not None}
        metrics.close()
        return losses if len(losses) == len(steps) else {}
    return {}


def _series(metrics: Metrics, rank: int) -> list[Series]:
    """The loss of a rank in all attempts."""
    sources = [source for source in metrics.table.sources if source.rank == rank]
    return [series for source in sources if (series := metrics.table.of(source).get("loss"))]


def _loss_at(all_series: list[Series], time: float) -> float | None:
    """Return the last loss that was reported before a time, by the first rank that reported one."""
    for series in all_series:
        at = bisect_right(series.time, time + SLACK) - 1
        if at >= 0 and math.isfinite(series.value[at]):
            return series.value[at]
    return None
