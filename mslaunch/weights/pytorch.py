"""Files of torch.save, zip and older: where each tensor of the state_dict lies. Needs no torch, and runs nothing."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from mslaunch.checkpoint.formats.tensor import OTHER_ITEMS, Malformed, Part, Tensor
from mslaunch.checkpoint.moving.views import ITEMS, View
from mslaunch.weights.pickled_values import TensorRef
from mslaunch.weights.pickles import read_pickle, read_with_storages
from mslaunch.weights.state_dicts import find_state_dict

_MOST_PICKLE = 64 << 20
_MOST_REPEATED = 64 << 20
"""Bytes that a view may make of fewer, by repeating them."""
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_LOCAL_HEADER = struct.Struct("<4s22sHH")
_COUNT = struct.Struct("<q")
_ITEMS = {**ITEMS, **OTHER_ITEMS}


@dataclass(frozen=True, slots=True)
class Stored:
    """What a file holds: its pickled value, and where each storage lies."""

    value: Any
    storages: Mapping[str, Part]


def read(fd: int, size: int, key: str | None = None) -> dict[str, View | Tensor]:
    """Read the description of a state_dict; `key` names it where the file holds several.

    A tensor of a type that MindSpore's checkpoints do not have is no view: it can be named and left out, not written.
    """
    head = os.pread(fd, 4, 0)
    stored = _read_zip(fd, size) if head == b"PK\x03\x04" else _read_older(fd, size, head)
    found = find_state_dict(stored.value, key)
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
    value, refs = read_with_storages(file)
    keys = read_pickle(file)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Malformed("it does not list its storages")
    sizes = {ref.key: _ITEMS.get(ref.dtype or "", 1) for ref in refs.values()}
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


def _view(name: str, tensor: TensorRef, storages: Mapping[str, Part], size: int) -> View | Tensor:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Malformed("a name that is no text") from None
    if tensor.pending:
        raise Malformed(
            f"{name} is a view whose values torch changes when it reads them ({tensor.pending}). "
            f"Save its .resolve_{tensor.pending}()"
        )
    ref, itemsize = tensor.storage, _ITEMS[tensor.dtype]
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
    if tensor.dtype in OTHER_ITEMS:
        first = at + begin + tensor.offset * itemsize
        return Tensor(name, tensor.dtype, tensor.shape, ((first, (last + 1 - tensor.offset) * itemsize * bool(count)),))
    if not count:
        return View(((0, 0),), tensor.dtype, 0, tensor.shape, tensor.strides)
    return View(((at + begin, length - begin),), tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
