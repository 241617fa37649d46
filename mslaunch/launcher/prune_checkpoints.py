"""Which checkpoints of a run can go: all of them, or all but the best."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from mslaunch.checkpoint.files import Network, SavedStep, files_of_code, files_of_run, networks
from mslaunch.checkpoint.sets import newest_complete
from mslaunch.errors import RequestError
from mslaunch.metrics.series import Series
from mslaunch.shared import layout
from mslaunch.store.layout import RunFolder
from mslaunch.store.metrics import Metrics
from mslaunch.store.sizes import entries

SLACK = 2.0  # seconds between the line that tells a loss, and when the agent has read it
_RANK = re.compile(rf"{layout.RANK}(\d{{1,6}})")


def surplus(folder: RunFolder, keep_best: bool) -> list[Path]:
    """Return the checkpoint files that can go; with `keep_best` all but the best step of each network."""
    of_code = [file for file in files_of_code(folder.path) if file.step is not None]
    saved = [*networks(files_of_run(_rank_folders(folder), entries)), *networks(of_code)]
    kept = {path for network in saved for path in _kept(folder, network)} if keep_best else set()
    return sorted(path for network in saved for path in network.files if path not in kept)


def _rank_folders(folder: RunFolder) -> dict[int, Path]:
    places = {}
    for place in folder.path.glob(f"{layout.RANK}*"):
        rank = _RANK.fullmatch(place.name)
        if rank is not None and not place.is_symlink():
            places[int(rank[1])] = folder.work(int(rank[1]))
    return places


def _kept(folder: RunFolder, network: Network) -> Iterable[Path]:
    """The files of the best step, in both formats; all files where no step is whole on all ranks that save."""
    try:
        best = _best(folder, network)
    except RequestError:
        return network.files  # two formats of one step that differ: which one is right is not known
    if best is None:
        return network.files
    return (path for saved in network.steps if _is_same(saved, best) for path in saved.files.values())


def _is_same(one: SavedStep, other: SavedStep) -> bool:
    return (one.run, one.step) == (other.run, other.step)


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
    """The loss that was told last before a time, by the first rank that told one."""
    for series in all_series:
        at = bisect_right(series.time, time + SLACK) - 1
        if at >= 0 and math.isfinite(series.value[at]):
            return series.value[at]
    return None
