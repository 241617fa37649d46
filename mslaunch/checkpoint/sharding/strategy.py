"""Strategies: how MindSpore cut each parameter over stages and devices, and the files that say so (protobuf, JSON)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from mslaunch.documents import protobuf
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import RequestError, StrategyUnreadable

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""Where a slice lies in the whole tensor: from and to, per dimension."""

MOST_DEVICES = 1 << 20
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """What a strategy file says of one parameter."""

    devices: tuple[int, ...]
    """The device matrix; the last axis counts fastest."""
    axes: tuple[tuple[int, ...], ...]
    """Per dimension the axes that it is cut along, outermost first; none where it is whole."""
    optimizer: int = 0
    """How many ways optimizer parallelism cuts dimension 0 further; -1 is over all replicas, 0 not at all."""
    shape: Shape | None = None
    """The whole shape, where the file records it."""

    @property
    def world(self) -> int:
        return prod(self.devices)

    @property
    def tensor_cuts(self) -> tuple[int, ...]:
        """Into how many parts tensor parallelism cuts each dimension."""
        return tuple(prod(self.devices[axis] for axis in axes) for axes in self.axes)

    @property
    def optimizer_cut(self) -> int:
        """Into how many parts optimizer parallelism cuts dimension 0 on top of that."""
        if self.optimizer == 0 or not self.axes:
            return 1
        return self.optimizer if self.optimizer > 0 else self.world // prod(self.tensor_cuts)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Into how many parts each dimension is cut, all in all."""
        cuts = self.tensor_cuts
        return (cuts[0] * self.optimizer_cut, *cuts[1:]) if cuts else ()

    @property
    def cut_dimension(self) -> int | None:
        """The dimension that tensor parallelism cuts most; one that it names counts, even on a single device."""
        dimensions = [index for index, axes in enumerate(self.axes) if axes]
        return max(dimensions, key=lambda index: self.tensor_cuts[index]) if dimensions else None

    def problem(self) -> str | None:
        """Say what is impossible about this layout, if anything is."""
        if not self.devices or any(size < 1 for size in self.devices):
            return f"its device matrix is {list(self.devices)}"
        if len(self.devices) > _MOST_AXES or self.world > MOST_DEVICES:
            return f"its device matrix is of over {_MOST_AXES} axes or {MOST_DEVICES} devices"
        used = [axis for axes in self.axes for axis in axes]
        if any(not 0 <= axis < len(self.devices) for axis in used):
            return f"its tensor map names an axis that the device matrix {list(self.devices)} does not have"
        if len(set(used)) < len(used):
            return "its tensor map cuts along one axis twice"
        if self.world % prod(self.cuts):
            return f"it is cut into {prod(self.cuts)} slices, which {self.world} devices cannot share evenly"
        return self._shape_problem()

    def _shape_problem(self) -> str | None:
        if self.shape is None:
            return None
        if len(self.shape) != len(self.axes):
            return f"its shape {list(self.shape)} has not as many dimensions as its tensor map"
        if any(size < 1 or size % cut for size, cut in zip(self.shape, self.cuts, strict=True)):
            return f"its shape {list(self.shape)} cannot be cut as its tensor map says"
        return None


def everything(shape: Shape) -> Box:
    """Return the box of the whole tensor."""
    return tuple((0, size) for size in shape)


def whole_shape(layout: Layout, slice_shape: Shape) -> Shape:
    """Return the shape of the whole tensor, given that of a slice."""
    return tuple(size * cut for size, cut in zip(slice_shape, layout.cuts, strict=True))


def box(layout: Layout, shape: Shape, device: int) -> Box:
    """Return which part of the whole tensor a device holds."""
    place: list[int] = []
    for size in reversed(layout.devices):
        device, at = divmod(device, size)
        place.insert(0, at)
    indices = [_index(layout.devices, place, axes) for axes in layout.axes]
    if layout.optimizer_cut > 1:
        used = {axis for axes in layout.axes for axis in axes}
        replicas = [axis for axis in range(len(layout.devices)) if axis not in used]
        replica = _index(layout.devices, place, replicas) % layout.optimizer_cut
        indices[0] = indices[0] * layout.optimizer_cut + replica
    sizes = [size // cut for size, cut in zip(shape, layout.cuts, strict=True)]
    return tuple((index * size, (index + 1) * size) for index, size in zip(indices, sizes, strict=True))


def _index(devices: tuple[int, ...], place: list[int], axes: Iterable[int]) -> int:
    index = 0
    for axis in axes:
        index = index * devices[axis] + place[axis]
    return index


def box_shape(part: Box) -> Shape:
    return tuple(to - since for since, to in part)


def intersection(first: Box, second: Box) -> Box | None:
    """Return what two boxes have in common; None where that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return None if any(since >= to for since, to in both) else both


SIZE_LIMIT = 256 << 20
_MOST_STAGES = 1 << 12
_STAGED = re.compile(r"(\d{1,6})-(.+)", re.DOTALL)
_CURRENT_STAGE, _STRATEGY_ITEM, _LAYOUT_ITEM = 1, 2, 3
_FIELDS = (
    (_CURRENT_STAGE, protobuf.VARINT),
    (_STRATEGY_ITEM, protobuf.BYTES),
    (_LAYOUT_ITEM, protobuf.BYTES),
)
_DEV_MATRIX, _TENSOR_MAP, _SPLIT_SHAPE, _FIELD, _OPT_STEP, _OPT_SIZE = 1, 2, 3, 5, 6, 7


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a strategy file says, by stage and parameter."""

    name: str
    stages: Mapping[int, Mapping[str, Layout]]
    merged: bool
    """It holds all stages of a pipeline, as merge_pipeline_strategys writes it."""

    @property
    def stage_devices(self) -> int:
        return next(layout.world for layouts in self.stages.values() for layout in layouts.values())

    @property
    def world_size(self) -> int:
        return len(self.stages) * self.stage_devices

    @property
    def tensor_parallel(self) -> int:
        return max(prod(layout.tensor_cuts) for layout in self.layouts())

    @property
    def optimizer_parallel(self) -> int:
        return max(layout.optimizer_cut for layout in self.layouts())

    @property
    def data_parallel(self) -> int:
        return self.stage_devices // self.tensor_parallel

    @property
    def lone_stage(self) -> int | None:
        """The stage, where this is a later one of a pipeline without the others."""
        stage = next(iter(self.stages))
        return None if self.merged or stage == 0 else stage

    def layouts(self) -> Iterator[Layout]:
        for layouts in self.stages.values():
            yield from layouts.values()

    def names(self) -> set[str]:
        return {name for layouts in self.stages.values() for name in layouts}

    def of_rank(self, rank: int) -> Mapping[str, Layout]:
        """The parameters of the stage that a rank belongs to."""
        return self.stages[rank // self.stage_devices]


def read_strategy(path: Path) -> Strategy:
    """Read a strategy file; whatever is none is refused, never read as empty."""
    data = _bytes_of(path)
    try:
        if path.suffix == ".json":
            stage, layouts = _from_json(data)
        else:
            stage, layouts = _from_protobuf(data)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        hint = _looks_like(data) if path.suffix != ".json" else ""
        raise StrategyUnreadable(str(path), str(error) or type(error).__name__, hint) from None
    return _checked(str(path), stage, layouts)


def _bytes_of(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise StrategyUnreadable(str(path), "it is no regular file")
        with path.open("rb") as file:
            data = file.read(1)
            if path.stat().st_size > SIZE_LIMIT:
                raise StrategyUnreadable(str(path), f"over {SIZE_LIMIT >> 20} MB", _looks_like(data))
            # A checkpoint begins with its first parameter, and may be larger than memory.
            if data != b"\x0a" or path.suffix == ".json":
                data += file.read(SIZE_LIMIT)
    except IsADirectoryError:
        raise StrategyUnreadable(
            str(path), "it is a folder", "Name one file, or merge it: mslaunch strategy merge"
        ) from None
    except FileNotFoundError:
        fix = "Name the file that MindSpore wrote for strategy_ckpt_save_file."
        raise RequestError(f"{path}: no such strategy file. {fix}") from None
    except OSError as error:
        raise StrategyUnreadable(str(path), error.strerror or str(error)) from None
    if data == b"\x0a":
        raise StrategyUnreadable(str(path), "a strategy begins otherwise", _looks_like(data))
    return data


def _looks_like(data: bytes) -> str:
    if data[:1] == b"\x0a":
        return "It looks like a checkpoint; strategies are what strategy_ckpt_save_file names"
    if data[:1] == b"{":
        return "It looks like JSON: give it a name that ends in .json"
    return ""


def _from_protobuf(data: bytes) -> tuple[int, dict[str, Layout]]:
    stage, layouts = 0, {}
    for number, kind, _, content in protobuf.fields(data):
        if (number, kind) not in _FIELDS:
            raise protobuf.Malformed(f"field {number} is none of a strategy's")
        if number == _STRATEGY_ITEM:
            stage = _stage_of_item(content)
        elif number == _LAYOUT_ITEM:
            inner = {number: inner for number, kind, _, inner in protobuf.fields(content) if kind == protobuf.BYTES}
            if not inner.get(1) or 2 not in inner:
                raise protobuf.Malformed("a parameter without name or layout")
            layouts[inner[1].decode()] = _layout_message(inner[2])
    return stage, layouts


def _stage_of_item(content: bytes) -> int:
    for number, kind, _, inner in protobuf.fields(content):
        if number == 2 and kind == protobuf.BYTES:
            for field, _, value, _ in protobuf.fields(inner):
                if field == 1:
                    return value
    return 0


def _layout_message(content: bytes) -> Layout:
    lists: dict[int, list[list[int]]] = {_DEV_MATRIX: [], _TENSOR_MAP: [], _SPLIT_SHAPE: []}
    single = {_FIELD: 0, _OPT_STEP: 0, _OPT_SIZE: 0}
    for number, kind, value, inner in protobuf.fields(content):
        if number in lists:
            entries = (protobuf.numbers(k, v, c) for n, k, v, c in protobuf.fields(inner) if n == 1)
            lists[number].append([item for entry in entries for item in entry])
        elif number in single and kind == protobuf.VARINT:
            single[number] = protobuf.signed(value)
    maps = lists[_TENSOR_MAP]
    tensor_map: list[Any] = [entry for entry in maps if entry] if len(maps) > 1 else [*maps, []][0]
    return _layout(
        [*lists[_DEV_MATRIX], []][0],
        tensor_map,
        any(lists[_SPLIT_SHAPE]) or single[_FIELD] > 0,
        single[_OPT_STEP],
        single[_OPT_SIZE],
        None,
    )


def _from_json(data: bytes) -> tuple[int, dict[str, Layout]]:
    try:
        raw = parse_json(data)
    except Unreadable as error:
        raise protobuf.Malformed(str(error)) from None
    items = raw.get("parallel_layout_item") if isinstance(raw, dict) else None
    if not isinstance(items, dict) or not all(isinstance(item, dict) for item in items.values()):
        raise protobuf.Malformed("it has no parallel_layout_item with a layout for each parameter")
    stages = [int(item["stage"]) for item in raw.get("parallel_strategy_item", {}).values()]
    layouts = {
        str(name): _layout(
            _listed(item, "dev_matrix"),
            _listed(item, "tensor_map"),
            bool(item.get("param_split_shape")) or int(item.get("field", 0)) > 0,
            int(item.get("opt_weight_shard_step", 0)),
            int(item.get("opt_weight_shard_size", 0)),
            _listed(item, "tensor_shape") if item.get("tensor_shape") is not None else None,
        )
        for name, item in items.items()
    }
    return stages[0] if stages else 0, layouts


def _listed(item: dict[str, Any], key: str) -> list[Any]:
    value = item.get(key)
    entries = value if isinstance(value, list) else [""]
    flat = [number for entry in entries for number in (entry if isinstance(entry, list) else [entry])]
    if not all(type(number) is int for number in flat):
        raise protobuf.Malformed(f"{key} is to be a list of numbers, and is {str(value)[:40]!r}")
    return list(value or ())


def _layout(
    devices: list[int], tensor_map: list[Any], uneven: bool, step: int, size: int, shape: list[int] | None
) -> Layout:
    if uneven:
        raise ValueError("it cuts a parameter unevenly (param_split_shape or field), which is not supported")
    axes = []
    for entry in tensor_map:
        along = entry if isinstance(entry, list) else [entry]
        axes.append(tuple(len(devices) - 1 - int(k) for k in along if k != -1))
    if step == 0:
        size = 0
    sizes = None
    if shape is not None and not size:  # else it is not certain to be the whole shape: optimizer parallelism cuts too
        sizes = tuple(map(int, shape))
    return Layout(tuple(map(int, devices)), tuple(axes), size, sizes)


def _checked(name: str, stage: int, layouts: Mapping[str, Layout]) -> Strategy:
    if not layouts:
        raise StrategyUnreadable(name, "it lists no parameter")
    if not 0 <= stage < _MOST_STAGES:
        raise StrategyUnreadable(name, f"it is of stage {stage}")
    for parameter, layout in layouts.items():
        if problem := layout.problem():
            raise StrategyUnreadable(name, f"{parameter}: {problem}")
    staged = [_STAGED.fullmatch(parameter) for parameter in layouts]
    merged = all(staged)
    stages: dict[int, dict[str, Layout]] = {}
    for parameter, match in zip(layouts, staged, strict=True):
        number, plain = (int(match[1]), match[2]) if merged and match else (stage, parameter)
        stages.setdefault(number, {})[plain] = layouts[parameter]
    sizes = {layout.world for layout in layouts.values()}
    if len(sizes) > 1:
        numbers = ", ".join(map(str, sorted(sizes)))
        raise StrategyUnreadable(name, f"its parameters are laid out over different numbers of devices: {numbers}")
    if merged and sorted(stages) != list(range(len(stages))):
        numbers = ", ".join(map(str, sorted(stages)))
        raise StrategyUnreadable(name, f"it holds stages {numbers}; stages count from 0 without gaps")
    return Strategy(name, dict(sorted(stages.items())), merged)


def write_strategy(layouts: Iterable[tuple[str, Layout]]) -> bytes:
    """Write a strategy of one stage, without optimizer parallelism, so that MindSpore reads it."""
    # MindSpore takes a strategy without operators for an empty file.
    operators = protobuf.field_number(1, 0) + protobuf.field_bytes(2, protobuf.field_number(1, 1))
    operator = protobuf.field_bytes(1, b"mslaunch") + protobuf.field_bytes(2, operators)
    out = [protobuf.field_number(_CURRENT_STAGE, 1), protobuf.field_bytes(_STRATEGY_ITEM, operator)]
    for name, layout in layouts:
        maps = [(_TENSOR_MAP, row) for row in _tensor_maps(layout)]
        message = b"".join(
            protobuf.field_bytes(number, b"".join(protobuf.field_number(1, value) for value in row))
            for number, row in ((_DEV_MATRIX, layout.devices), *maps, (_SPLIT_SHAPE, ()), (4, ()))
        )
        message += b"".join(protobuf.field_number(number, 0) for number in (_FIELD, _OPT_STEP, _OPT_SIZE))
        item = protobuf.field_bytes(1, name.encode()) + protobuf.field_bytes(2, message)
        out.append(protobuf.field_bytes(_LAYOUT_ITEM, item))
    return b"".join(out)


def _tensor_maps(layout: Layout) -> list[tuple[int, ...]]:
    """One list of numbers, or where a dimension is cut along several axes an empty one, and one per dimension.

    Without the empty one, a single dimension cut along two axes would be read as two dimensions.
    """
    last = len(layout.devices) - 1
    numbers = [tuple(last - axis for axis in axes) or (-1,) for axes in layout.axes]
    return [(), *numbers] if any(len(entry) > 1 for entry in numbers) else [tuple(entry[0] for entry in numbers)]


def merge_stages(folder: Path) -> tuple[bytes, str, Strategy]:
    """Merge as merge_pipeline_strategys does, but strictly; return the file's bytes, its suffix, and the strategy."""
    files = sorted(path for path in folder.glob("*") if path.suffix in (".ckpt", ".json")) if folder.is_dir() else []
    if not files:
        raise RequestError(f"{folder}: no strategy files (*.ckpt or *.json) here. Name the folder that holds them.")
    suffixes = {path.suffix for path in files}
    if len(suffixes) > 1:
        raise RequestError(f"{folder}: both .ckpt and .json strategies. Keep those of one form in the folder.")
    by_stage: dict[int, Path] = {}
    read: dict[Path, Strategy] = {}
    for path in files:
        strategy = read_strategy(path)
        if strategy.merged:
            raise RequestError(f"{path}: already merged. Take it out of the folder, or use it as it is.")
        stage = next(iter(strategy.stages))
        earlier = by_stage.setdefault(stage, path)
        if earlier != path and strategy.stages != read[earlier].stages:
            raise RequestError(_conflict(stage, earlier, path, read[earlier], strategy))
        read[path] = strategy
    if missing := sorted(set(range(max(by_stage) + 1)) - set(by_stage)):
        gaps = ", ".join(map(str, missing))
        present = ", ".join(f"{stage} ({path.name})" for stage, path in sorted(by_stage.items()))
        raise RequestError(f"{folder}: stage {gaps} is missing; found {present}. Copy that stage's strategy file here.")
    ordered = {stage: by_stage[stage] for stage in sorted(by_stage)}
    data = _merge_json(ordered) if suffixes == {".json"} else _merge_protobuf(ordered)
    merged = Strategy(str(folder), {stage: read[path].stages[stage] for stage, path in ordered.items()}, True)
    sizes = {stage: read[path].stage_devices for stage, path in ordered.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{size} in stage {stage}" for stage, size in sizes.items())
        raise RequestError(f"{folder}: stages with different numbers of devices ({counts}) cannot be merged.")
    return data, suffixes.pop(), merged


def _conflict(stage: int, file: Path, other_file: Path, first: Strategy, second: Strategy) -> str:
    a, b = first.stages[stage], second.stages[stage]
    name = next(name for name in sorted({*a, *b}) if a.get(name) != b.get(name))
    what = f"lay out {name} differently" if name in a and name in b else f"differ: only one lists {name}"
    files = f"{file.name} and {other_file.name}"
    return f"{files} are both of stage {stage}, but {what}. Keep the right one of them in the folder."


def _merge_protobuf(files: dict[int, Path]) -> bytes:
    operators, layouts = [], []
    for stage, path in files.items():
        for number, _, _, content in protobuf.fields(path.read_bytes()):
            if number == _STRATEGY_ITEM:
                operators.append(protobuf.field_bytes(number, content))
            elif number == _LAYOUT_ITEM:
                renamed = b""
                for field, _, _, inner in protobuf.fields(content):
                    renamed += protobuf.field_bytes(field, f"{stage}-".encode() + inner if field == 1 else inner)
                layouts.append(protobuf.field_bytes(number, renamed))
    return protobuf.field_number(_CURRENT_STAGE, 1) + b"".join(operators) + b"".join(layouts)


def _merge_json(files: dict[int, Path]) -> bytes:
    merged: dict[str, Any] = {"current_stage": 1, "parallel_strategy_item": {}, "parallel_layout_item": {}}
    for stage, path in files.items():
        raw = parse_json(path.read_bytes())
        merged["parallel_strategy_item"].update(raw.get("parallel_strategy_item", {}))
        layouts = {f"{stage}-{name}": item for name, item in raw["parallel_layout_item"].items()}
        merged["parallel_layout_item"].update(layouts)
    return json.dumps(merged).encode()
