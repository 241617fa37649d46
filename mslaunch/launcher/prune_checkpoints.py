"""Which checkpoints of a run can go: all of them, or all but the best."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mslaunch import layout
from mslaunch.checkpoint.files import Step, newest_step, step_of
from mslaunch.metrics.series import Series
from mslaunch.store.layout import RunFolder
from mslaunch.store.metrics import Metrics
from mslaunch.store.sizes import entries

SLACK = 2.0  # seconds between the line that tells a loss, and when the agent has read it
_RANK = re.compile(rf"{layout.RANK}(\d{{1,6}})")

ByRank = dict[int, dict[Step, list[Path]]]


def surplus(folder: RunFolder, keep_best: bool) -> list[Path]:
    """Return the checkpoint files that can go; with `keep_best` all but the best step of each network."""
    found = find_checkpoints(folder)
    kept = {path for network in _by_network(found) for path in _kept(folder, network)} if keep_best else set()
    return sorted(path for path in _files(found) if path not in kept)


def _by_network(found: ByRank) -> Iterable[ByRank]:
    """Take apart what a script saves under several names (two networks of a GAN), each with the ranks that save it."""
    networks: dict[str, ByRank] = {}
    for rank, steps in found.items():
        for step, paths in steps.items():
            networks.setdefault(step[2], {}).setdefault(rank, {})[step] = paths
    return networks.values()


def _kept(folder: RunFolder, network: ByRank) -> Iterable[Path]:
    """The files of the best step; all files where no step is whole on all ranks that save."""
    best = _best(folder, network)
    return _files(network) if best is None else (path for steps in network.values() for path in steps.get(best, ()))


def _files(found: ByRank) -> Iterator[Path]:
    return (path for steps in found.values() for paths in steps.values() for path in paths)


def find_checkpoints(folder: RunFolder) -> ByRank:
    """Return the checkpoint files in the ranks' folders by rank and step; what lies behind a link is not the run's."""
    found: ByRank = {}
    for place in folder.path.glob(f"{layout.RANK}*"):
        rank = _RANK.fullmatch(place.name)
        if rank is None or place.is_symlink():
            continue
        steps = found.setdefault(int(rank[1]), {})
        for entry in entries(place):
            with suppress(OSError):
                step = step_of(Path(entry.name)) if entry.is_file(follow_symlinks=False) else None
                if step is not None:
                    steps.setdefault(step, []).append(Path(entry.path))
    return {rank: steps for rank, steps in found.items() if steps}


def _best(folder: RunFolder, found: ByRank) -> Step | None:
    """The whole step with the least loss, where that is known of all; else the newest whole one."""
    common = set.intersection(*(set(steps) for steps in found.values()))
    loss = _losses(folder, found, common)
    for step in sorted(loss, key=lambda step: (loss[step], [-number for number in step[:2]])):
        if newest_step(found, {step}, found).step is not None:
            return step
    return newest_step(found, common, found).step


def _losses(folder: RunFolder, found: ByRank, steps: set[Step]) -> Mapping[Step, float]:
    """The last loss that was told before each step was saved; nothing unless it is known of all."""
    metrics = Metrics(folder.metrics)
    with suppress(OSError):
        written = {step: min(_written(paths[step]) for paths in found.values()) for step in steps}
        series = [series for rank in sorted(found) for series in _series(metrics, rank)]
        losses = {step: loss for step, time in written.items() if (loss := _loss_at(series, time)) is not None}
        metrics.close()
        return losses if len(losses) == len(steps) else {}
    return {}


def _written(paths: list[Path]) -> float:
    return min(path.stat().st_mtime for path in paths)


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
