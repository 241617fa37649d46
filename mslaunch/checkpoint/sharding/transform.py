"""The whole of a reshard: verify a set, plan the new one, name its files, write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.formats.table import FORMATS, Shard, describe
from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.sharding import reshard
from mslaunch.checkpoint.sharding.reshard import natural_layout, plan_reshard
from mslaunch.checkpoint.sharding.sets import ShardSet
from mslaunch.checkpoint.sharding.strategy import Strategy, write_strategy
from mslaunch.checkpoint.sharding.verify import require_valid
from mslaunch.errors import RequestError
from mslaunch.shared import layout as run_layout

STRATEGY = "strategy.ckpt"
"""Where a layout that was made here is written, beside the shards."""


@dataclass(frozen=True, slots=True)
class Target:
    """The layout and form that the new set is to have."""

    strategy: Strategy | None = None
    """None is the whole model in one file, unless a degree is given."""
    degree: int | None = None
    """The natural layout with this tensor-parallel degree."""
    suffix: str | None = None
    """That of a format; None is as it was."""


def plan_transform(shard_set: ShardSet, source: Strategy | None, target: Target) -> Planned:
    """Verify a set and decide everything about the new one; nothing is written."""
    if source is None and len(shard_set.files) > 1:
        raise RequestError(
            f"{shard_set.folder}: {len(shard_set.files)} ranks, and no strategy says how they belong together. "
            f"Give --from STRATEGY, or name one file if each is whole."
        )
    verified = require_valid(shard_set, source)
    parameters = describe(verified.shards, source)
    strategy, extra = target.strategy, {}
    if target.degree is not None and target.degree > 1:
        if source is None:
            raise RequestError(
                "a whole model does not say where its parameters are to be cut. Give the new layout with --to STRATEGY."
            )
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        strategy = natural_layout(source, target.degree, shapes)
        extra[STRATEGY] = write_strategy(sorted(strategy.stages[0].items()))
    if strategy is not None and strategy.lone_stage is not None:
        raise RequestError(
            f"{strategy.name}: one stage of a pipeline alone. Merge its stages: mslaunch strategy merge."
        )
    job = plan_reshard(parameters, source, strategy)
    if strategy is not None and not any(assembly.name in strategy.names() for assembly in job.assemblies):
        raise RequestError(f"{strategy.name}: lists no parameter of {shard_set.folder}; it belongs to another network.")
    suffix = target.suffix or next(iter(shard_set.files.values())).suffix
    warnings = tuple(finding for finding in verified.findings if finding.severity == "warning")
    return Planned(job, new_names(shard_set, len(job.shards), suffix), extra, warnings)


def plan_convert(shard_set: ShardSet, shards: Mapping[int, Shard], suffix: str) -> Planned:
    """The same shards in the other format."""
    names = {rank: str(Path(shard_set.name_of(rank)).with_suffix(suffix)) for rank in shards}
    return Planned(reshard.plan_convert(shards), names, {}, ())


def new_names(shard_set: ShardSet, ranks: int, suffix: str) -> dict[int, str]:
    """Name the new files: `rank_2/net-3_120.ckpt`, or `rank_2/net2.ckpt` where no step is known."""
    if shard_set.step is None:
        prefix = re.sub(rf"[_-]?({run_layout.RANK}?)?\d*$", "", shard_set.files[min(shard_set.files)].stem) or "model"
        return {rank: f"{run_layout.rank_folder(rank)}/{prefix}{rank}{suffix}" for rank in range(ranks)}
    network = shard_set.network.rpartition("/")[2]
    prefix = re.sub(rf"[_-]?({run_layout.RANK})?\*", "", network) or "model"  # without the rank's number
    step = f"{shard_set.step[0]}_{shard_set.step[1]}"
    return {rank: f"{run_layout.rank_folder(rank)}/{prefix}-{step}{suffix}" for rank in range(ranks)}


def suffix_for(name: str | None) -> str | None:
    """Read `--format ckpt`."""
    if name is None:
        return None
    suffixes = {form.name: suffix for suffix, form in FORMATS.items()}
    if name not in suffixes:
        raise RequestError(f"--format: one of {', '.join(suffixes)} is wanted, got {name!r}.")
    return suffixes[name]
