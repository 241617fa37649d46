"""MindSpore's .ckpt: a protobuf Checkpoint, hopped over value by value, so that no tensor is read for its header."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from mslaunch.checkpoint.formats.tensor import ITEM_SIZES, Content, FileLayout, MalformedFile, Part, Tensor, chunks
from mslaunch.documents import protobuf

_CRC_WORD = b"crc_num"
_CRC_SIZE = len(_CRC_WORD) + 10
_HEAD = 4096  # name, type and shape of a parameter fit in; longer ones are read again
_LONGEST_HEAD = 1 << 20
_MOST_VALUES = 1 << 20
SPLIT_ABOVE = 512 << 20
TYPES = frozenset({*ITEM_SIZES, "str", "Int4"})
_BREAKPOINT = "_breakpoint.ckpt"
_STRATEGY_HEAD = b"\x08"
"""How a strategy of MindSpore begins: with a number, not with a parameter."""


def is_checkpoint(path: Path) -> bool:
    """Tell a checkpoint from MindSpore's strategies and breakpoints, which end in .ckpt too."""
    if path.name.endswith(_BREAKPOINT):
        return False
    try:
        with path.open("rb") as file:
            return file.read(1) != _STRATEGY_HEAD
    except OSError:
        return True  # reading it as a checkpoint tells why


def read(fd: int, size: int) -> Content:
    """Hop over the values; return their tensors and the checksum at the end, if there is one."""
    end, crc = _without_checksum(fd, size)
    values: list[Tensor] = []
    at = 0
    while at < end:
        try:
            value, at = _parse(os.pread(fd, min(_HEAD, end - at), at), at, end)
        except _Longer:
            value, at = _parse(os.pread(fd, min(_LONGEST_HEAD, end - at), at), at, end)
        values.append(value)
        if len(values) > _MOST_VALUES:
            raise MalformedFile(f"over {_MOST_VALUES} parameters")
    return Content(tuple(_joined(list(same)) for _, same in groupby(values, lambda value: value.name)), crc)


def _without_checksum(fd: int, size: int) -> tuple[int, int | None]:
    tail = os.pread(fd, _CRC_SIZE, max(0, size - _CRC_SIZE))
    if len(tail) == _CRC_SIZE and tail.startswith(_CRC_WORD):
        return size - _CRC_SIZE, int.from_bytes(tail[len(_CRC_WORD) :], "big")
    return size, None


class _Longer(MalformedFile):
    """The head goes on beyond what was read."""


def _parse(head: bytes, at: int, end: int) -> tuple[Tensor, int]:
    """Read the head of the value at `at`; return its tensor and where the next one begins."""
    key, inner = _number(head, 0)
    if key != 1 << 3 | protobuf.BYTES:
        place = f"at byte {at} it goes on" if at else "it begins"
        raise MalformedFile(f"{place} with no parameter (is it encrypted, or no checkpoint?)")
    length, inner = _number(head, inner)
    stop = at + inner + length
    if stop > end:
        raise MalformedFile(f"truncated: the parameter at byte {at} ends at byte {stop}, the file at byte {end}")
    name, tensor = "", None
    for number, begin, size in _spans(head, inner, inner + length):
        if number == 1:
            name = _text(head, begin, size)
        elif number == 2:
            tensor = _tensor(head, begin, size, at)
        elif number == 3:
            raise MalformedFile(f"{name or 'a parameter'} is a map parameter, which is not supported")
    if not name or tensor is None:
        raise MalformedFile(f"the parameter at byte {at} has no name or no tensor")
    dtype, shape, content = tensor
    if shape == (0,) and content[1]:
        shape = ()
    return Tensor(name, dtype, shape, (content,)), stop


def _tensor(head: bytes, begin: int, size: int, at: int) -> tuple[str, tuple[int, ...], Part]:
    dtype, dims, content = "", [], None
    inner, stop = begin, begin + size
    while inner < stop:
        key, inner = _number(head, inner)
        if key == 1 << 3:
            value, inner = _number(head, inner)
            dims.append(protobuf.signed(value))
            continue
        if key & 7 != protobuf.BYTES or key >> 3 not in (1, 2, 3):
            raise MalformedFile(f"field {key >> 3} is none of a tensor's")
        length, inner = _number(head, inner)
        if inner + length > stop:
            raise MalformedFile(f"truncated: {length} bytes are announced where {stop - inner} are left")
        if key >> 3 == 1:
            dims.extend(protobuf.numbers(protobuf.BYTES, 0, _slice(head, inner, length)))
        elif key >> 3 == 2:
            dtype = _text(head, inner, length)
        else:
            content = (at + inner, length)
        inner += length
    if not dtype or content is None or any(dim < 0 for dim in dims):
        raise MalformedFile("a tensor without type or content, or of negative shape")
    return dtype, tuple(dims), content


def _spans(head: bytes, inner: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, place and length of a message's fields; all of a Value's have a length."""
    while inner < stop:
        key, inner = _number(head, inner)
        if key & 7 != protobuf.BYTES:
            raise MalformedFile(f"field {key >> 3} is none of a parameter's")
        length, inner = _number(head, inner)
        if inner + length > stop:
            raise MalformedFile(f"truncated: {length} bytes are announced where {stop - inner} are left")
        yield key >> 3, inner, length
        inner += length


def _number(head: bytes, at: int) -> tuple[int, int]:
    try:
        return protobuf.varint(head, at)
    except protobuf.Malformed as error:
        raise (_Longer if len(head) == _HEAD else MalformedFile)(str(error)) from None


def _slice(head: bytes, at: int, length: int) -> bytes:
    if at + length > len(head):
        raise _Longer(f"a name or shape of {length} bytes")
    return head[at : at + length]


def _text(head: bytes, at: int, length: int) -> str:
    try:
        return _slice(head, at, length).decode()
    except UnicodeDecodeError:
        raise MalformedFile("a name that is no text") from None


def _joined(values: Sequence[Tensor]) -> Tensor:
    first = values[0]
    for more in values:
        if (first.dtype, first.shape) != (more.dtype, more.shape):
            raise MalformedFile(f"{first.name} stands in it twice, as {first.words()} and as {more.words()}")
    return replace(first, parts=tuple(part for value in values for part in value.parts))


def checksum(fd: int, size: int, tensors: Sequence[Tensor]) -> int:
    """Compute MindSpore's crc_num: of everything before it."""
    del tensors
    crc = 0
    for data in chunks(fd, 0, _without_checksum(fd, size)[0]):
        crc = zlib.crc32(data, crc)
    return crc


def frame(tensors: Sequence[Tensor], framework: str = "ms") -> FileLayout:
    """Lay out a file of these tensors in their order; large ones are split as MindSpore does."""
    del framework
    at = 0
    heads, places = [], {}
    for tensor in tensors:
        parts = []
        # As MindSpore cuts: every 512 MiB. (By rows only where it saves asynchronously; it reads both, as we do.)
        for begin in range(0, max(tensor.nbytes, 1), SPLIT_ABOVE):
            length = min(SPLIT_ABOVE, tensor.nbytes - begin)
            head = _head(tensor, length)
            heads.append((at, head))
            parts.append((at + len(head), length))
            at += len(head) + length
        places[tensor.name] = tuple(parts)
    return FileLayout(at, tuple(heads), places)


def _head(tensor: Tensor, length: int) -> bytes:
    shape = (0,) if tensor.dtype == "str" else tensor.shape
    dims = b"".join(protobuf.field_number(1, dim) for dim in shape)
    described = dims + protobuf.field_bytes(2, tensor.dtype.encode()) + protobuf.field_head(3, length)
    value = protobuf.field_bytes(1, tensor.name.encode()) + protobuf.field_head(2, len(described) + length) + described
    return protobuf.field_head(1, len(value) + length) + value
