"""Files of torch.save, zip and older: where each tensor of the state_dict lies. Needs no torch, and runs nothing."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mslaunch.checkpoint.pickled_values import StorageRef, TensorRef
from mslaunch.checkpoint.pickles import read_pickle
from mslaunch.checkpoint.tensor import Malformed, Part
from mslaunch.checkpoint.views import ITEMS, View

SUFFIXES = (".pth", ".pt", ".bin")
_MOST_PICKLE = 64 << 20
_MOST_TENSORS = 1 << 20
_MOST_REPEATED = 64 << 20
"""Bytes that a view may make of fewer, by repeating them."""
_MOST_LEVELS = 8
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LOCAL_HEADER = struct.Struct("<4s22sHH")
_COUNT = struct.Struct("<q")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network")
"""Where programs keep the state_dict in what they save."""
_PREFIXES = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before every name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds: its pickled value, and where each storage lies."""

    value: Any
    storages: Mapping[str, Part]


def read(fd: int, size: int, key: str | None = None) -> dict[str, View]:
    """Read the description of a state_dict; `key` names it where the file holds several."""
    head = os.pread(fd, 4, 0)
    stored = _read_zip(fd, size) if head == b"PK\x03\x04" else _read_older(fd, size, head)
    found = _without_prefix(_named(_tensors(_state_dict(stored.value, key))))
    if not found:
        raise Malformed("it holds no tensor")
    return {name: _view(name, tensor, stored.storages, size) for name, tensor in found.items()}


def _read_zip(fd: int, size: int) -> Stored:
    try:
        with os.fdopen(os.dup(fd), "rb") as file, zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError, OSError) as error:
        raise Malformed(f"truncated or no whole zip file: {error}") from None
    root = next((name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")), None)
    if root is None:
        raise Malformed("a zip file without data.pkl, so not from torch.save")
    if f"{root}constants.pkl" in entries:
        raise Malformed("a TorchScript program, not a state_dict. Save model.state_dict() with torch.save")
    order = entries.get(f"{root}byteorder")
    if order is not None and os.pread(fd, 3, _part(fd, order, size)[0]) == b"big":
        raise Malformed("its numbers are big-endian, which is not supported")
    at, length = _part(fd, entries[f"{root}data.pkl"], size)
    if length > _MOST_PICKLE:
        raise Malformed(f"its pickle is larger than {_MOST_PICKLE >> 20} MB")
    value = read_pickle(io.BytesIO(os.pread(fd, length, at)))
    data = f"{root}data/"
    storages = {
        name.removeprefix(data): _part(fd, entry, size) for name, entry in entries.items() if name.startswith(data)
    }
    return Stored(value, storages)


def _part(fd: int, entry: zipfile.ZipInfo, size: int) -> Part:
    """Where the bytes of an entry lie; they are stored as they are."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
        raise Malformed(f"{entry.filename} is compressed or encrypted, which torch.save does not do")
    header = os.pread(fd, _LOCAL_HEADER.size, max(0, min(entry.header_offset, size)))
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise Malformed(f"{entry.filename} does not lie where the zip file says")
    _, _, name, extra = _LOCAL_HEADER.unpack(header)
    at = entry.header_offset + _LOCAL_HEADER.size + name + extra
    if not 0 <= at <= at + entry.file_size <= size:
        raise Malformed(f"truncated: {entry.filename} ends at byte {at + entry.file_size}, the file at byte {size}")
    return at, entry.file_size


def _read_older(fd: int, size: int, head: bytes) -> Stored:
    """Read the format before torch 1.6: five pickles, then the storages one after the other."""
    if head[:1] != b"\x80":
        raise Malformed("neither a zip file nor a pickle, so not from torch.save")
    file = io.BytesIO(os.pread(fd, min(size, _MOST_PICKLE), 0))
    if read_pickle(file) != _MAGIC:
        raise Malformed("a pickle, but not one of torch.save")
    if read_pickle(file) != _PROTOCOL:
        raise Malformed("torch.save of an unknown version")
    system = read_pickle(file)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Malformed("its numbers are big-endian, which is not supported")
    value, keys = read_pickle(file), read_pickle(file)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Malformed("it does not list its storages")
    sizes = {ref.key: ITEMS.get(ref.dtype or "", 1) for ref in _storage_refs(value)}
    storages, at = {}, file.tell()
    for key in keys:
        count = os.pread(fd, _COUNT.size, at)
        length = _COUNT.unpack(count)[0] * sizes.get(key, 1) if len(count) == _COUNT.size else -1
        at += _COUNT.size
        if length < 0 or at + length > size:
            raise Malformed(f"truncated: storage {key[:40]} does not end in the file")
        storages[key] = (at, length)
        at += length
    return Stored(value, storages)


def _storage_refs(value: Any) -> Iterator[StorageRef]:
    """Every storage that a value refers to, wherever it stands in it."""
    queue, seen = [value], set[int]()
    while queue:
        one = queue.pop()
        if isinstance(one, TensorRef):
            yield one.storage
        elif isinstance(one, StorageRef):
            yield one
        elif isinstance(one, (dict, list, tuple)) and id(one) not in seen:
            seen.add(id(one))
            queue += one.values() if isinstance(one, dict) else one


def _state_dict(value: Any, key: str | None, level: int = 0) -> dict[Any, Any]:
    """Find the state_dict in what was saved."""
    for step in key.split(".") if key else ():
        value = value.get(step) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        where = f" under {key}" if key else ""
        raise Malformed(f"it holds no state_dict{where}. Save model.state_dict() with torch.save")
    if key or level > _MOST_LEVELS or any(isinstance(one, TensorRef) for one in value.values()):
        return value
    inner = {name: one for name, one in value.items() if isinstance(one, dict) and next(_tensors(one), None)}
    for name in _WRAPPERS:
        if name in inner:
            return _state_dict(inner[name], None, level + 1)
    if len(inner) > 1:
        names = ", ".join(sorted(str(name)[:40] for name in inner)[:8])
        raise Malformed(f"it holds several state_dicts ({names}). Say which one with --key")
    return next(iter(inner.values()), {})


def _tensors(value: dict[Any, Any]) -> Iterator[tuple[str, TensorRef]]:
    """The tensors of a state_dict, those of dicts in it included; numbers and texts in it are left out."""
    queue, count = [("", value, 0)], 0
    seen = set[int]()  # a dict that stands in it twice would multiply, level by level
    while queue:
        prefix, here, level = queue.pop()
        if level > _MOST_LEVELS or id(here) in seen:
            raise Malformed(f"its dicts are nested deeper than {_MOST_LEVELS} levels, or one stands in it twice")
        seen.add(id(here))
        for key, one in here.items():
            count += 1
            if count > _MOST_TENSORS:
                raise Malformed(f"over {_MOST_TENSORS} entries")
            if isinstance(one, TensorRef):
                yield f"{prefix}{key}", one
            elif isinstance(one, dict):
                queue.append((f"{prefix}{key}.", one, level + 1))


def _named(tensors: Iterator[tuple[str, TensorRef]]) -> dict[str, TensorRef]:
    named: dict[str, TensorRef] = {}
    for name, tensor in tensors:
        if name in named:
            raise Malformed(f"{name} stands in it twice")
        named[name] = tensor
    return named


def _without_prefix(tensors: dict[str, TensorRef]) -> dict[str, TensorRef]:
    for prefix in _PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            return _without_prefix({name.removeprefix(prefix): one for name, one in tensors.items()})
    return tensors


def _view(name: str, tensor: TensorRef, storages: Mapping[str, Part], size: int) -> View:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Malformed("a name that is no text") from None
    if tensor.dtype not in ITEMS:
        raise Malformed(f"{name}: {tensor.dtype} is a type that MindSpore's checkpoints do not have")
    ref, itemsize = tensor.storage, ITEMS[tensor.dtype]
    if ref.key not in storages:
        raise Malformed(f"{name}: its storage {ref.key[:40]} is not in the file")
    at, length = storages[ref.key]
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    count = prod(tensor.shape)
    begin = ref.begin * itemsize
    if count and begin + (last + 1) * itemsize > length:
        raise Malformed(f"{name}: reaches to byte {begin + (last + 1) * itemsize} of a storage of {length}")
    if at + length > size:
        raise Malformed(f"truncated: {name} ends at byte {at + length}, the file at byte {size}")
    if count * itemsize > max(length, _MOST_REPEATED):
        raise Malformed(f"{name}: a view that makes {count * itemsize >> 20} MB of {length} bytes")
    if not count:
        return View(((0, 0),), tensor.dtype, 0, tensor.shape, tensor.strides)
    return View(((at + begin, length - begin),), tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
