"""From one layout to another: which bytes of which shards make up each new one. Pure; `stream` moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats.table import Parameter, Shard
from mslaunch.checkpoint.formats.tensor import Tensor, shape_words
from mslaunch.checkpoint.moving.views import TensorView
from mslaunch.checkpoint.sharding.strategy import Strategy
from mslaunch.checkpoint.sharding.tensor_layout import Box, Layout, Shape, box, box_shape, everything
from mslaunch.errors import RequestError


@dataclass(frozen=True, slots=True)
class Assembly:
    """One parameter: where its slices lie now, and which boxes of it the new shards get."""

    name: str
    shape: Shape
    itemsize: int
    sources: tuple[tuple[Box, Path, Tensor | TensorView], ...]
    """One file for every distinct box; a view where its bytes are in another order, or of another type."""
    targets: tuple[tuple[Box, tuple[int, ...]], ...]
    """The ranks that get each distinct box."""


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """Everything that has to be moved, and the tensors of each new shard in order."""

    assemblies: tuple[Assembly, ...]
    shards: Mapping[int, tuple[Tensor, ...]]
    """Their parts are of the right length, but have no place yet."""
    left_out: tuple[str, ...] = ()
    """Parameters that the source's strategy lists and the target's does not."""
    framework: str = "ms"
    """What a .safetensors notes: ms for MindSpore's names, pt for PyTorch's."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in self.shards.values() for tensor in tensors)


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


def plan_reshard(parameters: Mapping[str, Parameter], source: Strategy | None, target: Strategy | None) -> ReshardPlan:
    """Decide which bytes go where. The shards must have been verified against the source."""
    listed = set(parameters)
    left_out: tuple[str, ...] = ()
    if source is not None:
        listed = source.names()
        if target is not None:
            left_out = tuple(sorted((parameters.keys() & listed) - target.names()))
    new: dict[int, list[Tensor]] = {rank: [] for rank in range(target.world_size if target else 1)}
    assemblies: list[Assembly] = []
    for name, parameter in parameters.items():
        if name in left_out:
            continue
        places = target_boxes(name, parameter.shape, target, cut=name in listed)
        sample = parameter.slices[0][2]
        assemblies.append(make_assembly(name, parameter.shape, parameter.slices, places))
        for part, ranks in places.items():
            size, shape = sample.nbytes, sample.shape
            if sample.itemsize is not None:
                shape = box_shape(part)
                size = prod(shape) * sample.itemsize
            for rank in ranks:
                new[rank].append(replace(sample, shape=shape, parts=((0, size),)))
    return ReshardPlan(tuple(assemblies), {rank: tuple(tensors) for rank, tensors in new.items()}, left_out)


def plan_convert(shards: Mapping[int, Shard]) -> ReshardPlan:
    """Every rank's tensors as they are, for a file of another format."""
    assemblies = []
    for rank, shard in shards.items():
        for name, tensor in shard.tensors.items():
            place = everything(tensor.shape)
            assemblies.append(make_assembly(name, tensor.shape, [(place, shard.path, tensor)], {place: (rank,)}))
    return ReshardPlan(tuple(assemblies), {rank: tuple(shard.tensors.values()) for rank, shard in shards.items()})


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
    sample = sources[0][2]
    if sample.itemsize is None:
        # Moved whole, as bytes: strings, and types that are packed.
        box_of_bytes = ((0, sample.nbytes),)
        if len(sources) > 1:
            raise RequestError(f"{name}: {sample.dtype} is packed and cannot be cut or joined. Leave it whole.")
        everyone = tuple(rank for ranks in targets.values() for rank in ranks)
        return Assembly(name, (sample.nbytes,), 1, ((box_of_bytes, *sources[0][1:]),), ((box_of_bytes, everyone),))
    have = sum(prod(box_shape(place)) for place, *_ in sources)
    if have != prod(shape):
        raise RequestError(
            f"{name}: its slices hold {have} of {prod(shape)} elements. `mslaunch ckpt verify` tells which."
        )
    return Assembly(name, shape, sample.itemsize, tuple(sources), tuple(targets.items()))
