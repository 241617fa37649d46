"""The little of protobuf's wire format that MindSpore's files need: fields in, fields out, every length checked."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10  # bytes of a varint of 64 bits


class Malformed(ValueError):
    """The bytes are no such message."""


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read a number; return it and where it ends."""
    value = 0
    for index in range(_LONGEST):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + index + 1
    raise Malformed("a number without end")


def signed(value: int) -> int:
    """Protobuf writes negative numbers as their 64-bit complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (number, kind, value, content) for each field; content is that of BYTES, value that of VARINT."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value, b""
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise Malformed(f"a field of kind {kind}")
        if at + length > len(data):
            raise Malformed(f"a field of {length} bytes where {len(data) - at} are left")
        yield number, kind, 0, data[at : at + length]
        at += length


def numbers(kind: int, value: int, content: bytes) -> Iterator[int]:
    """Read one entry of a repeated number, or all of a packed one."""
    if kind == VARINT:
        yield signed(value)
        return
    at = 0
    while at < len(content):
        item, at = varint(content, at)
        yield signed(item)


def encode_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_number(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | VARINT) + encode_varint(value)


def field_head(number: int, length: int) -> bytes:
    """The key and length that stand before `length` bytes."""
    return encode_varint(number << 3 | BYTES) + encode_varint(length)


def field_bytes(number: int, content: bytes) -> bytes:
    return field_head(number, len(content)) + content
