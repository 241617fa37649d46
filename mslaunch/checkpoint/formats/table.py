"""The checkpoint formats, one row each. All other code asks this table for suffixes, files, headers and layouts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats import ckpt, safetensors
from mslaunch.checkpoint.formats.tensor import MOST_DIMENSIONS, Content, FileLayout, MalformedFile, Tensor
from mslaunch.checkpoint.moving.file_io import check_unchanged, open_regular, open_source, remember
from mslaunch.checkpoint.sharding.strategy import Box, Shape, Strategy, box, everything, whole_shape
from mslaunch.errors import HoldsTorch, RequestError, ShardUnreadable
from mslaunch.shared import layout

LONGEST_NAME = 1_000_000
"""Bytes: a reader takes a megabyte for the head of a parameter."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one file holds."""

    path: Path
    tensors: Mapping[str, Tensor]
    size: int
    crc: int | None = None
    redundancy_removed: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    framework: str | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A whole parameter: its shape, and the file and bytes that hold each distinct box of it."""

    shape: Shape
    slices: tuple[tuple[Box, Path, Tensor], ...]


@dataclass(frozen=True, slots=True)
class Format:
    """How one format keeps checkpoints, one file per rank and step: how a file is recognised, read and written."""

    name: str
    """What --format calls it; its files end in this name."""
    read: Callable[[int, int], Content]
    frame: Callable[[Sequence[Tensor], str], FileLayout]
    """Lays out a new file for tensors whose names are of this framework (ms, pt)."""
    checksum: Callable[[int, int, Sequence[Tensor]], int]
    """Computes what MindSpore records as crc_num, of an open file of this size."""
    is_checkpoint: Callable[[Path], bool] = lambda _: True
    """Tells a checkpoint from other files with the same suffix."""
    types: frozenset[str] | None = None
    """The types that MindSpore reads from it, where `frame` does not check them."""
    is_used_by_torch: bool = False
    """PyTorch's programs read and write it too; a file of torch.save never has its suffix."""
    may_overlap: bool = False
    """MindSpore's transform_checkpoints is known to have written slices that begin inside of others."""


FORMATS = {
    ".ckpt": Format("ckpt", ckpt.read, ckpt.frame, ckpt.checksum, ckpt.is_checkpoint, ckpt.TYPES),
    ".safetensors": Format(
        "safetensors",
        safetensors.read,
        safetensors.frame,
        safetensors.checksum,
        is_used_by_torch=True,
        may_overlap=True,
    ),
}
"""By suffix. The first is preferred where a step is there in several formats."""
FOR_TORCH = tuple(suffix for suffix, row in FORMATS.items() if row.is_used_by_torch)
TORCH_SUFFIXES = (".pth", ".pt", ".bin")
_ZIP = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def is_torch(path: Path) -> bool:
    """Tell whether a file is of torch.save; Lightning calls them .ckpt, others .pth.tar, .pkl or anything."""
    if path.suffix in TORCH_SUFFIXES:
        return True
    if path.suffix in FOR_TORCH:
        return False
    with suppress(OSError, ShardUnreadable):  # not a regular file, or cannot be read
        fd, _ = open_regular(path)
        try:
            return os.pread(fd, len(_ZIP), 0).startswith((_ZIP, *_PICKLES))
        finally:
            os.close(fd)
    return False


def recognise(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, of every format; what vanishes or cannot be entered is left out."""
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError:
        return []
    paths = []
    for entry in entries:
        path = Path(entry.path)
        with suppress(OSError):  # a link to itself
            if entry.is_file() and is_checkpoint(path):
                paths.append(path)
    return sorted(paths)


def is_checkpoint(path: Path) -> bool:
    return path.suffix in FORMATS and FORMATS[path.suffix].is_checkpoint(path)


def format_of(path: Path) -> Format:
    if path.suffix not in FORMATS:
        if is_torch(path):
            raise HoldsTorch(str(path))
        raise RequestError(f"{path}: checkpoints end in {' or '.join(FORMATS)}. Name one of those.")
    return FORMATS[path.suffix]


def describe(shards: Mapping[int, Shard], strategy: Strategy | None) -> dict[str, Parameter]:
    """Return the parameters of a step, in the order of the files; of replicas, the first rank's."""
    shapes: dict[str, Shape] = {}
    boxes: dict[str, dict[Box, tuple[Path, Tensor]]] = {}
    for rank in sorted(shards):
        layouts = strategy.of_rank(rank) if strategy else {}
        for name, tensor in shards[rank].tensors.items():
            layout = layouts.get(name)
            if layout is None or strategy is None:
                shape = shapes.setdefault(name, tensor.shape)
                place = everything(shape)
            else:
                shape = shapes.setdefault(name, whole_shape(layout, tensor.shape))
                place = box(layout, shape, rank % strategy.stage_devices)
            boxes.setdefault(name, {}).setdefault(place, (shards[rank].path, tensor))
    return {
        name: Parameter(shapes[name], tuple((place, *file) for place, file in places.items()))
        for name, places in boxes.items()
    }


def read_shard(path: Path) -> Shard:
    """Read a file's headers and check every length in them."""
    form = format_of(path)
    fd, status = open_regular(path)
    try:
        if status.st_size == 0:
            raise MalformedFile("it is empty")
        content = form.read(fd, status.st_size)
        tensors = _by_name(content.tensors)
    except (ValueError, OSError) as error:  # Malformed of either kind among them
        if is_torch(path):
            raise HoldsTorch(str(path)) from None
        raise ShardUnreadable(str(path), str(error)) from None
    finally:
        os.close(fd)
    notes = (content.crc, content.redundancy_removed, content.aliases, content.framework)
    return Shard(remember(path, status), tensors, status.st_size, *notes)


def _by_name(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in by_name:
            raise MalformedFile(f"{tensor.name} stands in it twice")
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise MalformedFile(f"{tensor.name}: {len(tensor.shape)} dimensions")
        if tensor.itemsize is not None and (size := prod(tensor.shape) * tensor.itemsize) != tensor.nbytes:
            raise MalformedFile(f"{tensor.name}: {tensor.words()} takes {size} bytes, it holds {tensor.nbytes}")
        by_name[tensor.name] = tensor
    return by_name


def checksum(shard: Shard) -> int:
    """Compute what MindSpore records as crc_num; this reads the whole file."""
    fd = open_source(shard.path)
    try:
        crc = format_of(shard.path).checksum(fd, shard.size, list(shard.tensors.values()))
        check_unchanged(fd, shard.path)
        return crc
    finally:
        os.close(fd)


def check_writable(path: Path, tensor: Tensor) -> None:
    """Refuse names and types that readers of a new file would not take."""
    if not tensor.name:
        raise RequestError("a parameter has no name, so it cannot be written. Name it with a rule (--names).")
    if (length := len(tensor.name.encode())) > LONGEST_NAME:
        start = f"{tensor.name[:60]}…"
        raise RequestError(f"{start}: a name of {length} bytes; {LONGEST_NAME} are possible. Shorten it.")
    types = format_of(path).types
    if types is not None and tensor.dtype not in types:
        other = " or ".join(FOR_TORCH)
        raise RequestError(
            f"{tensor.name}: {tensor.dtype} is a type that MindSpore's checkpoints do not have. Write {other}."
        )


def frame(path: Path, tensors: Sequence[Tensor], framework: str = "ms") -> FileLayout:
    """Lay out a new file for these tensors."""
    return format_of(path).frame(tensors, framework)


_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_INDEXES = ("*.safetensors.index.json", "*.bin.index.json", "*.index.json")
_OF_TRAINING = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|trainer_state)(_\d+)*\.\w+"
)
"""What a Trainer keeps beside the network."""
_MOST_FILES = 10_000


def find_index(folder: Path) -> Path | None:
    """Find the index of a model in several files."""
    for pattern in _INDEXES:
        if indexes := sorted(folder.glob(pattern)):
            if len(indexes) > 1:
                raise RequestError(f"{folder}: has {len(indexes)} indexes ({indexes[0].name} …). Name one of them.")
            return indexes[0]
    return None


def files_of_torch(folder: Path) -> list[Path]:
    """Find the files of a network: one, or a numbered set; nothing where there are none."""
    check_not_distributed(folder)
    entries = sorted(path for path in folder.iterdir() if not _OF_TRAINING.fullmatch(path.name))
    of_kinds = (
        [path for path in entries if path.suffix in FOR_TORCH],
        [path for path in entries if path.suffix in TORCH_SUFFIXES],
        [path for path in entries if path.is_file() and is_torch(path)],
    )
    files = next((paths for paths in of_kinds if paths), [])
    numbered = [path for path in files if _NUMBERED.fullmatch(path.name)]
    if len(files) > 1 and not numbered:
        names = ", ".join(path.name for path in files[:4])
        raise RequestError(f"{folder}: several files without an index ({names}). Name one of them.")
    return siblings((numbered or files)[0]) if files else []


def check_not_distributed(path: Path) -> None:
    """Refuse what torch.distributed.checkpoint wrote: its tensors are cut into parts."""
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".distcp" or (path.is_dir() and any(folder.glob("*.distcp"))):
        raise RequestError(
            f"{path}: a folder of torch.distributed.checkpoint, which is cut into parts. Write it as one file first: "
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} model.pth"
        )


def siblings(path: Path) -> list[Path]:
    """All files of a numbered set, model-00001-of-00008.safetensors; they must all be there."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    if not 1 <= count <= _MOST_FILES:
        raise RequestError(f"{path}: numbered as one of {count}; from 1 to {_MOST_FILES} are understood.")
    files = [path.with_name(f"{match[1]}-{number:05d}-of-{match[3]}{match[4]}") for number in range(1, count + 1)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        what = f"{len(missing)} of {count} files are missing ({missing[0]})"
        raise RequestError(f"{path.parent}: {what}. Copy them here.")
    return files


def holds_torch(path: Path) -> bool:
    """Tell whether a file or folder holds a model of PyTorch, not the checkpoints of MindSpore's ranks."""
    if not path.is_dir():
        return path.name.endswith(".index.json") or path.suffix == ".distcp" or is_torch(path)
    entries = list(path.iterdir())
    if any(entry.name.startswith(layout.RANK) for entry in entries):
        return False
    if any(_NUMBERED.fullmatch(entry.name) or entry.name.endswith((".index.json", ".distcp")) for entry in entries):
        return True
    files = [entry for entry in entries if entry.suffix in (*TORCH_SUFFIXES, *FORMATS)]
    return bool(files) and all(map(is_torch, files))
