"""The metrics of a run for other programs: event files for TensorBoard, and CSV."""

from __future__ import annotations

import csv
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, TextIO

from mslaunch.documents.protobuf import FIXED32, FIXED64, encode_varint, field_bytes, field_number
from mslaunch.errors import NotReadyError, RequestError
from mslaunch.metrics.rows import Number, Row, Source, Spread
from mslaunch.metrics.series import step_of
from mslaunch.run.metrics_file import read_rows
from mslaunch.run.paths import RunFolder
from mslaunch.shared import layout

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_MASK_DELTA = 0xA282EAD8
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5  # fields of Event
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2  # fields of Summary and Summary.Value


_TABLE = list(range(256))
for _ in range(8):
    _TABLE = [row >> 1 ^ _POLYNOMIAL * (row & 1) for row in _TABLE]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _wall_time(time: float) -> bytes:
    return encode_varint(_WALL_TIME << 3 | FIXED64) + struct.pack("<d", time)


def head(time: float) -> bytes:
    """The first record of a file."""
    return _record(_wall_time(time) + field_bytes(_FILE_VERSION, b"brain.Event:2"))


def event(time: float, step: int, values: Mapping[str, float]) -> bytes:
    """One record: what was known at one time and step."""
    summary = b""
    for name, number in values.items():
        try:
            packed = struct.pack("<f", number)
        except OverflowError:  # beyond what a float of 32 bits holds
            packed = struct.pack("<f", math.copysign(math.inf, number))
        value = encode_varint(_SIMPLE_VALUE << 3 | FIXED32) + packed
        summary += field_bytes(_VALUE, field_bytes(_TAG, name.encode()) + value)
    return _record(_wall_time(time) + field_number(_STEP, step) + field_bytes(_SUMMARY, summary))


COLUMNS = ("time", "attempt", "rank", "host", "device", "step", "name", "value", "least", "greatest")
EVENTS = "events.out.tfevents"
MOST_OPEN = 200
LAST_SECOND = 9_999_999_999


def _stepped(folder: RunFolder) -> Iterator[tuple[Row, Number | None]]:
    """Yield every row with the step of its source then."""
    last: dict[Source, dict[str, Number]] = {}
    for row in read_rows(folder.metrics):
        numbers = last.setdefault(row.source, {})
        numbers.update(_last_numbers(row))
        yield row, step_of(numbers)


def write_csv(folder: RunFolder, file: TextIO) -> int:
    """Write a line for each number of a run; return how many rows of the run's that were."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    count = 0
    for row, step in _stepped(folder):
        count += 1
        source = ["" if value is None else value for value in row.source]
        for name, value in row.values.items():
            spread = value if isinstance(value, Spread) else Spread(value, value, value)
            writer.writerow([f"{row.time:.3f}", *source, "" if step is None else step, name, *spread])
    return count


def write_tensorboard(folder: RunFolder, target: Path) -> list[Path]:
    """Write an event file for each rank, host and device of each attempt, in a folder of its own; return the files.

    TensorBoard shows each folder as a run. A rank's numbers stand at its steps, all others at their seconds.
    """
    written: dict[Source, Path] = {}
    began: float | None = None
    with ExitStack() as stack:
        files: dict[Source, BinaryIO] = {}
        for row, step in _stepped(folder):
            began = row.time if began is None else began
            values = _last_numbers(row)
            if not values:
                continue
            if row.source not in files:
                if len(files) >= MOST_OPEN:  # thousands of ranks have more than a process may open
                    files.pop(next(iter(files))).close()
                is_new = row.source not in written
                path = written.setdefault(row.source, _path(folder, target, row))
                path.parent.mkdir(parents=True, exist_ok=True)
                files[row.source] = stack.enter_context(path.open("wb" if is_new else "ab"))
                if is_new:
                    files[row.source].write(head(row.time))
            at = step if row.source.rank is not None and step is not None else row.time - began
            files[row.source].write(event(row.time, int(at) if math.isfinite(at) else 0, values))
    return list(written.values())


def _last_numbers(row: Row) -> dict[str, Number]:
    return {name: number for name in row.values if (number := row.last(name)) is not None}


def _path(folder: RunFolder, target: Path, row: Row) -> Path:
    source = row.source
    name = layout.rank_folder(source.rank) if source.rank is not None else f"host_{_safe(str(source.host))}"
    name += "" if source.device is None else f"_device_{source.device}"
    name += f".{source.attempt}" if source.attempt else ""
    second = min(max(0, int(row.time)), LAST_SECOND)
    return target / folder.name / name / f"{EVENTS}.{second:010d}.{_safe(folder.run_id)}"


def _safe(name: str) -> str:
    """A name without slashes, since a file of the run may hold anything."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)[:100].lstrip(".") or "_"


def export_csv(folder: RunFolder, target: Path | str) -> int:
    """Write the metrics of a run as CSV into a file; `-` is standard output. Return how many rows the run has."""
    _check_metrics(folder)
    if target == "-":
        return write_csv(folder, sys.stdout)
    try:
        with Path(target).open("w", encoding="utf-8", newline="") as file:
            return write_csv(folder, file)
    except OSError as error:
        raise _unwritable(target, error) from None


def export_tensorboard(folder: RunFolder, target: Path | str) -> list[Path]:
    """Write the metrics of a run as TensorBoard's event files below a folder; return the files."""
    _check_metrics(folder)
    try:
        return write_tensorboard(folder, Path(target))
    except OSError as error:
        raise _unwritable(target, error) from None


def _check_metrics(folder: RunFolder) -> None:
    if next(iter(read_rows(folder.metrics)), None) is None:
        raise RequestError(f"{folder.metrics}: {folder.run_id} has told no metrics, so there is nothing to export.")


def _unwritable(target: Path | str, error: OSError) -> NotReadyError:
    return NotReadyError(f"{target}: cannot be written ({error.strerror or error}). Name another place.")
