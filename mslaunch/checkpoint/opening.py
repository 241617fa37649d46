"""Opens weights: PyTorch's files, safetensors with an index, MindSpore's checkpoints, the shards of all ranks."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

from mslaunch import layout
from mslaunch.checkpoint import pytorch, safetensors
from mslaunch.checkpoint.layout import box_shape
from mslaunch.checkpoint.reshard import slices_of, whole_shapes
from mslaunch.checkpoint.sets import find_set
from mslaunch.checkpoint.shard import FORMATS, Shard, read_shard
from mslaunch.checkpoint.sources import remember
from mslaunch.checkpoint.strategy import Strategy
from mslaunch.checkpoint.tensor import Malformed, Tensor
from mslaunch.checkpoint.verify import SetIsWrong, verify
from mslaunch.checkpoint.views import ITEMS, View, view_of
from mslaunch.checkpoint.weights import Weight, weight_of
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import RequestError, ShardUnreadable

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_INDEXES = ("*.safetensors.index.json", "*.bin.index.json", "*.index.json")
_MOST_INDEX = 64 << 20
_MOST_FILES = 10_000

Weights = dict[str, Weight]


def open_weights(path: Path, strategy: Strategy | None = None, key: str | None = None) -> Weights:
    """Read the headers of everything that belongs together at this place; ranks' shards need their strategy."""
    if path.is_dir():
        return _open_folder(path, strategy, key)
    if not path.exists():
        raise RequestError(f"{path}: no such file. Name a .safetensors, .pth, .pt, .bin or .ckpt, or a folder.")
    if path.name.endswith(".index.json"):
        return _open_index(path, key)
    return _open_files(_siblings(path), key)


def check_key(key: str | None, *opened: Weights) -> None:
    """Refuse a key where none of the files has any: only those of torch.save do."""
    files = [_file_of(weight) for weights in opened for weight in weights.values()]
    if key is not None and files and all(path.suffix not in pytorch.SUFFIXES for path in files):
        known = ", ".join(pytorch.SUFFIXES)
        raise RequestError(f"--key {key}: {files[0]} has no keys; only {known} files have. Leave --key out.")


def _open_folder(folder: Path, strategy: Strategy | None, key: str | None) -> Weights:
    for pattern in _INDEXES:
        if found := sorted(folder.glob(pattern)):
            if len(found) > 1:
                raise RequestError(f"{folder}: has {len(found)} indexes ({found[0].name} …). Name one of them.")
            return _open_index(found[0], key)
    if strategy is not None or any(folder.glob(f"{layout.RANK}*")) or any(folder.glob("*.ckpt")):
        return _open_ranks(folder, strategy)
    for suffixes in ((".safetensors",), pytorch.SUFFIXES):
        files = sorted(entry for entry in folder.iterdir() if entry.suffix in suffixes)
        numbered = [path for path in files if _NUMBERED.fullmatch(path.name)]
        if numbered or len(files) == 1:
            return _open_files(_siblings((numbered or files)[0]), key)
        if files:
            names = ", ".join(path.name for path in files[:4])
            raise RequestError(f"{folder}: several files without an index ({names}). Name one of them.")
    raise RequestError(f"{folder}: no weights (*.safetensors, *.pth, *.pt, *.bin, *.ckpt) here.")


def _siblings(path: Path) -> list[Path]:
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


def _open_index(path: Path, key: str | None) -> Weights:
    """Read what an index lists: every name in the file that it says, and no other."""
    try:
        index = parse_json(read_text(path, _MOST_INDEX).encode())
        places = index["weight_map"] if isinstance(index, dict) else None
    except (Unreadable, OSError, KeyError) as error:
        raise RequestError(f"{path}: not an index: {error}. It needs a weight_map of names and files.") from None
    names = set(places.values()) if isinstance(places, dict) and all(map(_is_text, places.values())) else set()
    if not places or not names or any("/" in name or name in ("", ".", "..") for name in names):
        raise RequestError(f"{path}: not an index: its weight_map is to give each name a file in the same folder.")
    weights = _open_files([path.with_name(name) for name in sorted(names)], key)
    for name, file in places.items():
        found = weights.get(name)
        if found is None or _file_of(found).name != file:
            raise RequestError(f"{path}: {name} is not in {file}. Copy the files again.")
    extra = sorted(weights.keys() - places.keys())
    if extra:
        raise RequestError(f"{path}: does not list {extra[0]}, which {_file_of(weights[extra[0]]).name} holds.")
    return weights


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _file_of(weight: Weight) -> Path:
    return weight.packed[0] if weight.packed else weight.pieces[0][1]


def _open_files(files: Iterable[Path], key: str | None) -> Weights:
    weights: Weights = {}
    for path in files:
        for name, weight in _open_file(path, key).items():
            if name in weights:
                raise RequestError(f"{path}: {name} is in {_file_of(weights[name]).name} too. Keep one of the files.")
            weights[name] = weight
    return weights


def _open_file(path: Path, key: str | None) -> Weights:
    if path.suffix in FORMATS:
        return _of_shard(read_shard(path))
    if path.suffix not in pytorch.SUFFIXES:
        known = ", ".join((*FORMATS, *pytorch.SUFFIXES))
        raise RequestError(f"{path}: weights are in files that end in {known}. Name one of those.")
    source, views = _read(path, lambda fd, size: pytorch.read(fd, size, key))
    return {name: weight_of(name, source, view) for name, view in views.items()}


def _read(path: Path, read: Callable[[int, int], Mapping[str, View]]) -> tuple[Path, Mapping[str, View]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ShardUnreadable(str(path), error.strerror or str(error)) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Malformed("it is no regular file")
        return remember(path, found), read(fd, found.st_size)
    except (Malformed, OSError) as error:
        raise RequestError(f"{path}: not a state_dict that can be read: {str(error).removesuffix('.')}.") from None
    finally:
        os.close(fd)


def _of_shard(shard: Shard) -> Weights:
    return {name: _weight(name, shard.path, tensor) for name, tensor in shard.tensors.items()}


def _weight(name: str, path: Path, tensor: Tensor) -> Weight:
    dtype = safetensors.FLOAT8.get(tensor.dtype, tensor.dtype)
    if dtype not in ITEMS:
        return Weight(name, dtype, tensor.shape, (), (path, tensor))
    if prod(tensor.shape) * ITEMS[dtype] != tensor.nbytes:
        raise ShardUnreadable(str(path), f"{name}: {tensor.words()} does not take {tensor.nbytes} bytes")
    view = view_of(Tensor(name, dtype, tensor.shape, tensor.parts))
    return weight_of(name, path, view)


def _open_ranks(folder: Path, strategy: Strategy | None) -> Weights:
    """Merge the shards of all ranks, in what is read; nothing is written."""
    found = find_set(folder, strategy.world_size if strategy else None)
    if strategy is None and len(found.files) > 1:
        raise RequestError(
            f"{folder}: {len(found.files)} ranks, and no strategy says how they belong together. Give --strategy FILE."
        )
    verified = verify(found, strategy, content=False)
    if verified.errors:
        raise SetIsWrong(found, verified.errors)
    weights: Weights = {}
    for name, shape in whole_shapes(verified.shards, strategy).items():
        sources = slices_of(name, shape, verified.shards, strategy)
        _, path, tensor = sources[0]
        first = _weight(name, path, tensor)
        pieces = tuple((box, path, view_of(tensor)) for box, path, tensor in sources if not first.packed)
        if pieces and sum(prod(box_shape(box)) for box, *_ in pieces) != prod(shape):
            raise RequestError(f"{folder}: slices of {name} are missing. `mslaunch ckpt verify` tells which.")
        weights[name] = Weight(name, first.dtype, shape, pieces, first.packed)
    return weights
