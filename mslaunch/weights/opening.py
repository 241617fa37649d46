"""Opens weights: PyTorch's files, safetensors with an index, MindSpore's checkpoints, the shards of all ranks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats import safetensors
from mslaunch.checkpoint.formats.table import (
    FOR_TORCH,
    FORMATS,
    TORCH_SUFFIXES,
    check_not_distributed,
    describe,
    files_of_torch,
    find_index,
    is_torch,
    read_shard,
    siblings,
)
from mslaunch.checkpoint.formats.tensor import MalformedFile, Tensor
from mslaunch.checkpoint.moving.file_io import open_regular, remember
from mslaunch.checkpoint.moving.views import ITEMS, view_of
from mslaunch.checkpoint.moving.weights import Weight, rename, weight_of
from mslaunch.checkpoint.sharding.sets import SeveralNetworks, find_set
from mslaunch.checkpoint.sharding.strategy import Strategy, box_shape
from mslaunch.checkpoint.sharding.verify import require_valid
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable, read_text
from mslaunch.errors import NO_FILE, RequestError, ShardUnreadable
from mslaunch.shared import layout
from mslaunch.weights import pytorch

_SEGMENTS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""What torch.compile, FSDP and activation checkpointing put anywhere in a name."""
_PREFIX = "module."
"""What DataParallel puts before every name."""
_HEAD = "lm_head.weight"
_EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "shared.weight")
"""What the head of a language model is tied to, where its config.json says that it is tied."""


SUFFIXES = (*FORMATS, *TORCH_SUFFIXES)
_MOST_INDEX = 64 << 20
_MOST_CONFIG = 4 << 20

Weights = dict[str, Weight]


@dataclass(frozen=True, slots=True)
class _Opened:
    """Weights under the names that their files have."""

    weights: Weights
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that were left out since they are tied to another, and that other."""
    is_torch: bool = False


def open_weights(path: Path, strategy: Strategy | None = None, key: str | None = None) -> Weights:
    """Read the headers of everything that belongs together at this place; ranks' shards need their strategy."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        opened = _open_folder(path, strategy, key)
    elif not path.exists():
        raise RequestError(f"{path}: no such file. Name a file that ends in {', '.join(SUFFIXES)}, or a folder.")
    elif path.name.endswith(".index.json"):
        opened = _open_index(path, key)
    else:
        check_not_distributed(path)
        opened = _open_files(siblings(path), key)
    if not opened.is_torch:
        return opened.weights
    weights = _without_wrappers(_with_aliases(opened.weights, opened.aliases))
    embedding = next((name for name in _EMBEDDINGS if name in weights), None)
    if embedding is None or not _says_tied(folder / "config.json"):
        return weights
    return _with_aliases(weights, {_HEAD: embedding})


def _with_aliases(weights: Weights, aliases: Mapping[str, str]) -> Weights:
    """Add the names of tied weights; each is that of a weight which is there."""
    tied = {name: rename(weights[other], name) for name, other in aliases.items() if name not in weights}
    return {**weights, **tied}


def _without_wrappers(weights: Weights) -> Weights:
    names = [".".join(part for part in name.split(".") if part not in _SEGMENTS) or name for name in weights]
    while names and all(len(name) > len(_PREFIX) and name.startswith(_PREFIX) for name in names):
        names = [name.removeprefix(_PREFIX) for name in names]
    made: Weights = {}
    for old, new in zip(weights, names, strict=True):
        if new in made:
            raise RequestError(f"{old}: without the words of wrappers it is {new}, as another is. Rename one of them.")
        made[new] = rename(weights[old], new)
    return made


def _says_tied(config: Path) -> bool:
    """Tell whether the config.json of Hugging Face says that embedding and head are one tensor."""
    try:
        config_json = parse_json(read_text(config, _MOST_CONFIG).encode())
    except (Unreadable, OSError):
        return False
    return isinstance(config_json, dict) and config_json.get("tie_word_embeddings") is True


def check_key(key: str | None, *opened: Weights) -> None:
    """Refuse a key where none of the files has any: only those of torch.save do."""
    files = [_file_of(weight) for weights in opened for weight in weights.values()]
    if key is not None and files and not any(map(is_torch, files)):
        suffixes = ", ".join(TORCH_SUFFIXES)
        raise RequestError(f"--key {key}: {files[0]} has no keys; only {suffixes} files have. Leave --key out.")


def files_of(weights: Weights) -> list[Path]:
    """All files that hold some of these weights."""
    places = (path for weight in weights.values() for _, path, _ in weight.pieces)
    packed = (weight.packed[0] for weight in weights.values() if weight.packed)
    return sorted({*places, *packed})


def _open_folder(folder: Path, strategy: Strategy | None, key: str | None) -> _Opened:
    if index := find_index(folder):
        return _open_index(index, key)
    own = [suffix for suffix in FORMATS if suffix not in FOR_TORCH]  # MindSpore's alone
    has_shards = any(folder.glob(f"{layout.RANK}*")) or any(
        path.suffix in own and not is_torch(path) for path in folder.iterdir()
    )
    if strategy is not None or has_shards:
        return _Opened(_open_ranks(folder, strategy))
    if files := files_of_torch(folder):
        return _open_files(files, key)
    patterns = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
    raise RequestError(f"{folder}: no weights ({patterns}) here.")


def _open_index(path: Path, key: str | None) -> _Opened:
    """Read the weights that an index lists; each must lie in the file that it names, and there must be no other."""
    try:
        index = parse_json(read_text(path, _MOST_INDEX).encode())
        places = index["weight_map"] if isinstance(index, dict) else None
    except (Unreadable, OSError, KeyError) as error:
        raise RequestError(f"{path}: not an index: {error}. It needs a weight_map of names and files.") from None
    names: set[str] = set()
    if isinstance(places, dict) and all(isinstance(name, str) for name in places.values()):
        names = set(places.values())
    if not places or not names or any("/" in name or name in ("", ".", "..") for name in names):
        raise RequestError(f"{path}: not an index: its weight_map is to give each name a file in the same folder.")
    opened = _open_files([path.with_name(name) for name in sorted(names)], key)
    weights = opened.weights
    for name, file in places.items():
        weight = weights.get(name)
        if weight is None or _file_of(weight).name != file:
            raise RequestError(f"{path}: {name} is not in {file}. Copy the files again.")
    extra = sorted(weights.keys() - places.keys())
    if extra:
        raise RequestError(f"{path}: does not list {extra[0]}, which {_file_of(weights[extra[0]]).name} holds.")
    return opened


def _file_of(weight: Weight) -> Path:
    return weight.packed[0] if weight.packed else weight.pieces[0][1]


def _open_files(files: Iterable[Path], key: str | None) -> _Opened:
    weights: Weights = {}
    aliases: dict[str, str] = {}
    is_torch = True
    for path in files:
        opened = _open_file(path, key)
        for name, weight in opened.weights.items():
            if name in weights:
                raise RequestError(f"{path}: {name} is in {_file_of(weights[name]).name} too. Keep one of the files.")
            weights[name] = weight
        aliases |= opened.aliases
        is_torch = is_torch and opened.is_torch
    return _Opened(weights, aliases, is_torch)


def _open_file(path: Path, key: str | None) -> _Opened:
    if is_torch(path):
        return _Opened(_read_torch(path, key), is_torch=True)
    if path.suffix not in FORMATS:
        raise RequestError(f"{path}: weights are in files that end in {', '.join(SUFFIXES)}. Name one of those.")
    shard = read_shard(path)
    weights = {name: _weight(name, shard.path, tensor) for name, tensor in shard.tensors.items()}
    return _Opened(weights, shard.aliases, path.suffix in FOR_TORCH and shard.framework != "ms")


def _read_torch(path: Path, key: str | None) -> Weights:
    unreadable = f"{path}: not a state_dict that can be read"
    try:
        fd, status = open_regular(path)
    except ShardUnreadable as error:
        if error.what == NO_FILE:
            raise RequestError(f"{unreadable}: {NO_FILE}.") from None
        raise
    try:
        tensors = pytorch.read(fd, status.st_size, key)
    except (MalformedFile, OSError) as error:
        raise RequestError(f"{unreadable}: {str(error).removesuffix('.')}.") from None
    finally:
        os.close(fd)
    source = remember(path, status)
    weights: Weights = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            weights[name] = Weight(name, tensor.dtype, tensor.shape, (), (source, tensor))
        else:
            weights[name] = weight_of(name, source, tensor)
    return weights


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
    try:
        shard_set = find_set(folder, strategy.world_size if strategy else None)
    except SeveralNetworks as error:
        alone = f"Write one to a folder of its own: mslaunch ckpt convert {shlex.quote(str(folder))} -o NEW --prefix"
        raise SeveralNetworks(folder, error.names, alone) from None
    if strategy is None and len(shard_set.files) > 1:
        ranks = f"{len(shard_set.files)} ranks"
        raise RequestError(f"{folder}: {ranks}, and no strategy says how they belong together. Give --strategy FILE.")
    verified = require_valid(shard_set, strategy)
    weights: Weights = {}
    for name, parameter in describe(verified.shards, strategy).items():
        shape = parameter.shape
        _, path, tensor = parameter.slices[0]
        first = _weight(name, path, tensor)
        pieces = tuple((box, path, view_of(tensor)) for box, path, tensor in parameter.slices if not first.packed)
        if pieces and sum(prod(box_shape(box)) for box, *_ in pieces) != prod(shape):
            raise RequestError(f"{folder}: slices of {name} are missing. `mslaunch ckpt verify` tells which.")
        weights[name] = Weight(name, first.dtype, shape, pieces, first.packed)
    return weights
