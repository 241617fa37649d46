"""The whole of a reshard: verify a set, plan the new one, name its files, write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mslaunch.checkpoint.formats.table import FORMATS, Shard, describe
from mslaunch.checkpoint.moving.new_files import Progress, holds_same, write_file, write_shards
from mslaunch.checkpoint.sharding import reshard
from mslaunch.checkpoint.sharding.reshard import ReshardPlan, natural_layout, plan_reshard
from mslaunch.checkpoint.sharding.sets import ShardSet
from mslaunch.checkpoint.sharding.strategy import Strategy, write_strategy
from mslaunch.checkpoint.sharding.verify import SetIsWrong, ShardFinding, verify
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


@dataclass(frozen=True, slots=True)
class Planned:
    """A new set, ready to be written."""

    job: ReshardPlan
    names: Mapping[int, str]
    layout: Strategy | None
    extra: Mapping[str, bytes]
    warnings: tuple[ShardFinding, ...]

    def write(self, folder: Path, progress: Progress = lambda _: None) -> None:
        write_shards(self.job, self.names, folder, self.extra, progress)

    def is_in(self, folder: Path, progress: Progress = lambda _: None) -> bool:
        """Tell whether a folder holds this set already; every byte is compared."""
        return holds_same(self.job, self.names, folder, self.extra, progress)

    def write_file(self, path: Path, progress: Progress = lambda _: None) -> None:
        """Write the only shard as this file."""
        write_file(self.job, path, progress)


def plan_transform(found: ShardSet, source: Strategy | None, wanted: Target) -> Planned:
    """Verify a set and decide everything about the new one; nothing is written."""
    if source is None and len(found.files) > 1:
        raise RequestError(
            f"{found.folder}: {len(found.files)} ranks, and no strategy says how they belong together. Give --from "
            f"STRATEGY, or name one file if each is whole."
        )
    verified = verify(found, source)
    if verified.errors:
        raise SetIsWrong(found, verified.errors)
    parameters = describe(verified.shards, source)
    target, extra = wanted.strategy, {}
    if wanted.degree is not None and wanted.degree > 1:
        if source is None:
            raise RequestError(
                "a whole model does not say where its parameters are to be cut. Give the new layout with --to STRATEGY."
            )
        shapes = {name: parameter.shape for name, parameter in parameters.items()}
        target = natural_layout(source, wanted.degree, shapes)
        extra[STRATEGY] = write_strategy(sorted(target.stages[0].items()))
    if target is not None and target.lone_stage is not None:
        raise RequestError(f"{target.name}: one stage of a pipeline alone. Merge its stages: mslaunch strategy merge.")
    job = plan_reshard(parameters, source, target)
    if target is not None and not any(assembly.name in target.names() for assembly in job.assemblies):
        raise RequestError(f"{target.name}: lists no parameter of {found.folder}; it belongs to another network.")
    suffix = wanted.suffix or next(iter(found.files.values())).suffix
    warnings = tuple(finding for finding in verified.findings if finding.severity == "warning")
    return Planned(job, new_names(found, len(job.shards), suffix), target, extra, warnings)


def plan_convert(found: ShardSet, shards: Mapping[int, Shard], suffix: str) -> Planned:
    """The same shards in the other format."""
    names = {rank: str(Path(found.name_of(rank)).with_suffix(suffix)) for rank in shards}
    return Planned(reshard.plan_convert(shards), names, None, {}, ())


def new_names(found: ShardSet, ranks: int, suffix: str) -> dict[int, str]:
    """Name the new files: `rank_2/net-3_120.ckpt`, or `rank_2/net2.ckpt` where no step is known."""
    if found.step is None:
        prefix = re.sub(rf"[_-]?({run_layout.RANK}?)?\d*$", "", found.files[min(found.files)].stem) or "model"
        return {rank: f"{run_layout.rank_folder(rank)}/{prefix}{rank}{suffix}" for rank in range(ranks)}
    network = found.network.rpartition("/")[2]
    prefix = re.sub(rf"[_-]?({run_layout.RANK})?\*", "", network) or "model"  # without the rank's number
    step = f"{found.step[0]}_{found.step[1]}"
    return {rank: f"{run_layout.rank_folder(rank)}/{prefix}-{step}{suffix}" for rank in range(ranks)}


def suffix_for(name: str | None) -> str | None:
    """Read `--format ckpt`."""
    if name is None:
        return None
    suffixes = {form.name: suffix for suffix, form in FORMATS.items()}
    if name not in suffixes:
        raise RequestError(f"--format: one of {', '.join(suffixes)} is wanted, got {name!r}.")
    return suffixes[name]
