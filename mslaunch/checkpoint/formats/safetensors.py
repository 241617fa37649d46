""".safetensors: a JSON header and the tensors behind it, as MindSpore writes and reads it."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from mslaunch.checkpoint.formats.tensor import CHUNK, ITEM_SIZES, Content, FileLayout, MalformedFile, Tensor, chunks
from mslaunch.documents.json_text import parse_json
from mslaunch.documents.limits import Unreadable
from mslaunch.errors import RequestError

_HEADER_LIMIT = 100 << 20
_NAMES = {
    "BOOL": "Bool",
    "I8": "Int8",
    "U8": "UInt8",
    "I16": "Int16",
    "U16": "UInt16",
    "I32": "Int32",
    "U32": "UInt32",
    "I64": "Int64",
    "U64": "UInt64",
    "F16": "Float16",
    "BF16": "BFloat16",
    "F32": "Float32",
    "F64": "Float64",
}
_TYPES = {ours: theirs for theirs, ours in _NAMES.items()}
FLOAT8 = {"F8_E4M3": "Float8_e4m3fn", "F8_E5M2": "Float8_e5m2"}
_NO_ALIAS = ("format", "crc_num", "remove_redundancy", "total_size")
"""Keys of __metadata__ that are no names of weights."""
_CRC = re.compile(r"[0-9]{1,20}")
_MOST_ZEROS = 1 << 30
_LARGEST = (1 << 63) - 1


def read(fd: int, size: int) -> Content:
    """Read the header; every tensor must lie inside the file, and nothing behind the last."""
    length = int.from_bytes(os.pread(fd, 8, 0), "little")
    if size < 8 or length > size - 8:
        raise MalformedFile(f"truncated: a header of {length} bytes is announced, the file has {size}")
    if length > _HEADER_LIMIT:
        raise MalformedFile(f"a header of {length >> 20} MB; at most {_HEADER_LIMIT >> 20} are allowed")
    header = _header(os.pread(fd, length, 8))
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise MalformedFile("__metadata__ is no object")
    data = 8 + length
    tensors = tuple(_tensor(name, entry, data, metadata) for name, entry in header.items())
    _check_cover(tensors, data, size)
    crc = metadata.get("crc_num")
    crc = int(crc) if isinstance(crc, str) and _CRC.fullmatch(crc) else None
    aliases = _aliases(metadata, {tensor.name for tensor in tensors})
    framework = metadata.get("format")
    if not isinstance(framework, str):
        framework = None
    return Content(tensors, crc, metadata.get("remove_redundancy") == "True", aliases, framework)


def _aliases(metadata: dict[str, Any], names: set[str]) -> dict[str, str]:
    """Read what `safetensors.torch.save_model` notes of tied weights: the name that it left out, and the one kept."""
    aliases = {
        name: other
        for name, other in metadata.items()
        if isinstance(other, str) and other in names and name not in names and name not in _NO_ALIAS
    }
    try:
        "".join(aliases).encode()  # JSON can hold lone surrogates
    except UnicodeEncodeError:
        raise MalformedFile("__metadata__ has a name that is no text") from None
    return aliases


def _header(data: bytes) -> dict[str, Any]:
    try:
        header = parse_json(data, _object)
    except Unreadable as error:
        raise MalformedFile(f"its header: {error}") from None
    if not isinstance(header, dict):
        raise MalformedFile("its header is no object")
    return header


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise MalformedFile(f"{name!r} stands in its header twice")
        members[name] = value
    return members


def _tensor(name: str, entry: Any, data: int, metadata: dict[str, Any]) -> Tensor:
    try:
        begin, end = entry["data_offsets"]
        dtype, shape = _NAMES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"])
        numbers = (begin, end, *shape)
        if not all(type(number) is int and 0 <= number <= _LARGEST for number in numbers) or begin > end:
            raise ValueError
        if not (isinstance(dtype, str) and isinstance(entry["shape"], list)):
            raise TypeError
        f"{name}{dtype}".encode()  # JSON can hold lone surrogates
    except (KeyError, TypeError, ValueError):
        raise MalformedFile(f"{name!r}: its entry in the header is not dtype, shape and data_offsets") from None
    if metadata.get(name) == "Int4":
        dtype = "Int4"
    return Tensor(name, dtype, shape, ((data + begin, end - begin),))


def _check_cover(tensors: Sequence[Tensor], data: int, size: int) -> None:
    at = data
    for tensor in sorted(tensors, key=lambda tensor: tensor.parts[0]):
        begin, length = tensor.parts[0]
        if begin != at:
            raise MalformedFile(f"{tensor.name} lies at byte {begin}, where byte {at} was to be expected")
        at = begin + length
    if at != size:
        what = "truncated" if at > size else "too long"
        raise MalformedFile(f"{what}: its tensors end at byte {at}, the file at byte {size}")


def checksum(fd: int, size: int, tensors: Sequence[Tensor]) -> int:
    """Compute MindSpore's crc_num: names and contents, in the order of names."""
    del size
    crc = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        crc = zlib.crc32(tensor.name.encode(), crc)
        if tensor.shape == () and "Int" in tensor.dtype:
            content = _quirk(b"".join(chunks(fd, *tensor.parts[0])), tensor.dtype)
        else:
            content = chunks(fd, *tensor.parts[0])
        for data in content:
            crc = zlib.crc32(data, crc)
    return crc


def _quirk(data: bytes, dtype: str) -> Iterator[bytes]:
    """MindSpore takes bytes() of an integer without dimensions: for Python that is as many zeros."""
    count = int.from_bytes(data, "little", signed=not dtype.startswith("U"))
    for left in range(min(count, _MOST_ZEROS), 0, -CHUNK):
        yield bytes(min(left, CHUNK))


def frame(tensors: Sequence[Tensor], framework: str = "ms") -> FileLayout:
    """Lay out a file of these tensors: wide types first, so that each is aligned."""
    header: dict[str, Any] = {"__metadata__": {"format": framework}}
    offsets: dict[str, tuple[int, int]] = {}
    at = 0
    for tensor in sorted(tensors, key=lambda tensor: (-(tensor.itemsize or 1), tensor.name)):
        if tensor.dtype not in ITEM_SIZES:
            raise RequestError(f"{tensor.name}: {tensor.dtype} cannot be written to .safetensors. Keep .ckpt.")
        end = at + tensor.nbytes
        header[tensor.name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        offsets[tensor.name] = (at, tensor.nbytes)
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = 8 + len(text)
    places = {name: ((data + begin, length),) for name, (begin, length) in offsets.items()}
    return FileLayout(data + at, ((0, len(text).to_bytes(8, "little") + text),), places)
