"""From one layout to another: verifies a set, and plans which bytes of which shards make up each new one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats.table import FORMATS, Parameter, Shard, describe
from mslaunch.checkpoint.formats.tensor import Tensor, shape_words
from mslaunch.checkpoint.moving.new_files import Planned
from mslaunch.checkpoint.moving.views import TensorView
from mslaunch.checkpoint.sharding.sets import ShardSet
from mslaunch.checkpoint.sharding.strategy import (
    Box,
    Layout,
    Shape,
    Strategy,
    box,
    box_shape,
    everything,
    write_strategy,
)
from mslaunch.checkpoint.sharding.verify import require_valid
from mslaunch.errors import RequestError
from mslaunch.shared import layout as run_layout

STRATEGY = "strategy.ckpt"
"""Where a layout that was made here is written, beside the shards."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """One parameter: where its slices lie now, and which boxes of it the new shards get."""

    name: str
    dtype: str
    shape: Shape
    itemsize: int
    sources: tuple[tuple[Box, Path, Tensor | TensorView], ...]
    """One file for every distinct box; a view where its bytes are in another order, or of another type."""
    targets: tuple[tuple[Box, tuple[int, ...]], ...]
    """The ranks that get each distinct box."""
    packed: Shape | None = None
    """The shape of what is moved whole, as bytes: strings, and types that are packed."""


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """Everything that has to be moved, and the tensors of each new shard in order."""

    assemblies: tuple[Assembly, ...]
    shards: Mapping[int, Sequence[Tensor]]
    """Their parts are of the right length, but have no place yet."""
    left_out: tuple[str, ...] = ()
    """Parameters that the source's strategy lists and the target's does not."""
    framework: str = "ms"
    """What a .safetensors notes: ms for MindSpore's names, pt for PyTorch's."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in self.shards.values() for tensor in tensors)


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
    job = _plan_reshard(parameters, source, strategy)
    if strategy is not None and not any(assembly.name in strategy.names() for assembly in job.assemblies):
        raise RequestError(f"{strategy.name}: lists no parameter of {shard_set.folder}; it belongs to another network.")
    suffix = target.suffix or next(iter(shard_set.files.values())).suffix
    warnings = tuple(finding for finding in verified.findings if finding.severity == "warning")
    return Planned(job, new_names(shard_set, len(job.shards), suffix), extra, warnings)


def natural_layout(source: Strategy, degree: int, shapes: Mapping[str, Shape]) -> Strategy:
    """The layout with another tensor-parallel degree: every parameter cut where it was cut before, and only there."""
    layouts: dict[str, Layout] = {}
    for stage in source.stages.values():
        for name, layout in stage.items():
            cut = layout.cut_dimension
            if cut is not None and name in shapes and shapes[name][cut] % degree:
                raise RequestError(
                    f"{name}: dimension {cut} of {shape_words(shapes[name])} cannot be cut into {degree} equal parts. "
                    f"Ask for another number, or give a strategy for it (--to; infer: --predict-strategy)."
                )
            layouts[name] = Layout((degree,), tuple((0,) if index == cut else () for index in range(len(layout.axes))))
    if degree > 1 and not any(axes for layout in layouts.values() for axes in layout.axes):
        raise RequestError(
            f"{source.name} cuts no parameter, so it does not say where to cut. Give the new layout with --to STRATEGY."
        )
    return Strategy(f"tensor parallel {degree}", {0: layouts}, False)


def _plan_reshard(parameters: Mapping[str, Parameter], source: Strategy | None, target: Strategy | None) -> ReshardPlan:
    """Decide which bytes go where. The shards must have been verified against the source."""
    listed = set(parameters)
    left_out: tuple[str, ...] = ()
    if source is not None:
        listed = source.names()
        if target is not None:
            left_out = tuple(sorted((parameters.keys() & listed) - target.names()))
    assemblies = []
    for name, parameter in parameters.items():
        if name not in left_out:
            places = target_boxes(name, parameter.shape, target, cut=name in listed)
            assemblies.append(make_assembly(name, parameter.shape, parameter.slices, places))
    return make_plan(assemblies, range(target.world_size if target else 1), left_out)


def plan_convert(shard_set: ShardSet, shards: Mapping[int, Shard], suffix: str) -> Planned:
    """Every rank's tensors as they are, in files of another format."""
    assemblies = []
    for rank, shard in shards.items():
        for name, tensor in shard.tensors.items():
            place = everything(tensor.shape)
            assemblies.append(make_assembly(name, tensor.shape, [(place, shard.path, tensor)], {place: (rank,)}))
    names = {rank: str(Path(shard_set.name_of(rank)).with_suffix(suffix)) for rank in shards}
    return Planned(make_plan(assemblies, shards), names, {}, ())


def make_plan(
    assemblies: Sequence[Assembly], ranks: Iterable[int], left_out: tuple[str, ...] = (), framework: str = "ms"
) -> ReshardPlan:
    """List the tensors of each new shard."""
    shards: dict[int, list[Tensor]] = {rank: [] for rank in ranks}
    for assembly in assemblies:
        for place, owners in assembly.targets:
            shape = box_shape(place)
            part = (0, prod(shape) * assembly.itemsize)
            if assembly.packed is not None:
                shape = assembly.packed
            for rank in owners:
                shards[rank].append(Tensor(assembly.name, assembly.dtype, shape, (part,)))
    return ReshardPlan(tuple(assemblies), shards, left_out, framework)


def target_boxes(name: str, shape: Shape, target: Strategy | None, cut: bool = True) -> dict[Box, tuple[int, ...]]:
    """Which ranks get which box; what no strategy lists, every rank gets as it is."""
    whole = everything(shape)
    if target is None:
        return {whole: (0,)}
    ranks: dict[Box, tuple[int, ...]] = {}
    for stage, layouts in target.stages.items():
        layout = layouts.get(name)
        for device in range(target.stage_devices):
            rank = stage * target.stage_devices + device
            if layout is None:
                if not cut or name not in target.names():
                    ranks[whole] = (*ranks.get(whole, ()), rank)
                continue
            _check_divides(name, shape, layout, target.name)
            place = box(layout, shape, device)
            ranks[place] = (*ranks.get(place, ()), rank)
    return ranks


def _check_divides(name: str, shape: Shape, layout: Layout, strategy: str) -> None:
    if len(layout.axes) != len(shape):
        raise RequestError(
            f"{name}: {strategy} lays out {len(layout.axes)} dimensions, and the parameter is {shape_words(shape)}. "
            f"Give the strategy of the same network."
        )
    for index, (size, ways) in enumerate(zip(shape, layout.cuts, strict=True)):
        if size % ways:
            raise RequestError(
                f"{name}: {strategy} cuts dimension {index} of {shape_words(shape)} into {ways} parts, "
                f"which {size} cannot be. Give the strategy of the same network."
            )


def make_assembly(
    name: str, shape: Shape, sources: Sequence[tuple[Box, Path, Tensor]], targets: Mapping[Box, tuple[int, ...]]
) -> Assembly:
    """Put together what is to be done with one parameter; its slices must make up the whole."""
    _, path, sample = sources[0]
    if sample.itemsize is None:
        if len(sources) > 1:
            raise RequestError(f"{name}: {sample.dtype} is packed and cannot be cut or joined. Leave it whole.")
        all_bytes = ((0, sample.nbytes),)
        everyone = tuple(rank for ranks in targets.values() for rank in ranks)
        source = (all_bytes, path, sample)
        return Assembly(
            name, sample.dtype, (sample.nbytes,), 1, (source,), ((all_bytes, everyone),), packed=sample.shape
        )
    have = sum(prod(box_shape(place)) for place, *_ in sources)
    if have != prod(shape):
        raise RequestError(
            f"{name}: its slices hold {have} of {prod(shape)} elements. `mslaunch ckpt verify` tells which."
        )
    return Assembly(name, sample.dtype, shape, sample.itemsize, tuple(sources), tuple(targets.items()))


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
