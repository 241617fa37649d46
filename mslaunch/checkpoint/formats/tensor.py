"""A tensor as a file describes it: name, type, shape, and where its bytes lie."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Part = tuple[int, int]
"""Where a piece of a tensor lies in its file: offset and length."""

ITEM_SIZES = {
    "Bool": 1,
    "Int8": 1,
    "UInt8": 1,
    "Int16": 2,
    "UInt16": 2,
    "Int32": 4,
    "UInt32": 4,
    "Int64": 8,
    "UInt64": 8,
    "Float16": 2,
    "BFloat16": 2,
    "Float32": 4,
    "Float64": 8,
}
"""Bytes per element, by MindSpore's name of the type. Others (str, Int4) are moved whole and never cut."""

CHUNK = 4 << 20
MOST_DIMENSIONS = 64


class MalformedFile(ValueError):
    """The file is not of the format of its suffix, or is incomplete."""


_COMPLEX = {"complex32": 4, "complex64": 8, "complex128": 16}
_SMALL_FLOATS = {"float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}
_QUANTIZED = {"qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1}
OTHER_ITEMS = {**_COMPLEX, **_SMALL_FLOATS, **_QUANTIZED}
"""Bytes per element of the types that MindSpore's checkpoints do not have."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter in one file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return sum(length for _, length in self.parts)

    @property
    def itemsize(self) -> int | None:
        return ITEM_SIZES.get(self.dtype)

    def words(self) -> str:
        return f"{self.dtype} {shape_words(self.shape)}"


@dataclass(frozen=True, slots=True)
class Content:
    """The headers of a file."""

    tensors: tuple[Tensor, ...]
    crc: int | None = None
    redundancy_removed: bool = False
    """Parameters that another rank holds too were left out when it was saved."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that were left out since they are tied to another, and that other."""
    framework: str | None = None
    """The framework that a .safetensors names as its writer: ms, pt."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file to be written: its size, the bytes around the tensors, and where each tensor's bytes go."""

    size: int
    heads: tuple[tuple[int, bytes], ...]
    places: Mapping[str, tuple[Part, ...]]


def shape_words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def chunks(fd: int, offset: int, length: int) -> Iterator[bytes]:
    """Read a stretch of a file in bounded pieces."""
    end = offset + length
    while offset < end:
        data = os.pread(fd, min(CHUNK, end - offset), offset)
        if not data:
            raise MalformedFile("it ended while it was read")
        yield data
        offset += len(data)


def pieces(parts: tuple[Part, ...], offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Yield place in the file, place in the buffer and length for a stretch of a tensor that may lie in parts."""
    begin, done = 0, 0
    for at, size in parts:
        since, to = max(offset, begin), min(offset + length, begin + size)
        if since < to:
            yield at + since - begin, done, to - since
            done += to - since
        begin += size
