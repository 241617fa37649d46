"""TensorBoard's event files, written by hand: records with masked CRC-32C around a small protobuf message.

The format is that of TensorFlow's record_writer and event.proto; TensorBoard itself is not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from mslaunch.checkpoint.protobuf import FIXED32, FIXED64, VARINT, encode_varint, field_bytes

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5  # fields of Event
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2  # fields of Summary and Summary.Value


def _table() -> tuple[int, ...]:
    rows = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)  # noqa: PLW2901
        rows.append(number)
    return tuple(rows)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _key(number: int, kind: int) -> bytes:
    return encode_varint(number << 3 | kind)


def head(time: float) -> bytes:
    """The first record of a file."""
    return _record(_key(_WALL_TIME, FIXED64) + struct.pack("<d", time) + field_bytes(_FILE_VERSION, b"brain.Event:2"))


def event(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """One record: what was known at one time and step."""
    summary = b"".join(
        field_bytes(_VALUE, field_bytes(_TAG, name.encode()) + _key(_SIMPLE_VALUE, FIXED32) + _float32(number))
        for name, number in values.items()
    )
    wall_time = _key(_WALL_TIME, FIXED64) + struct.pack("<d", time)
    return _record(wall_time + _key(_STEP, VARINT) + encode_varint(step) + field_bytes(_SUMMARY, summary))


def _float32(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:  # beyond what a float of 32 bits holds
        return struct.pack("<f", float("inf") if number > 0 else float("-inf"))
