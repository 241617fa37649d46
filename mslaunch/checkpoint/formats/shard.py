"""One checkpoint file of either format: its tensors, its checksum, and the layout of a new one. Headers only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from mslaunch.checkpoint.formats import ckpt, safetensors
from mslaunch.checkpoint.formats.tensor import ITEM_SIZES, MOST_DIMENSIONS, Content, FileLayout, Malformed, Tensor
from mslaunch.checkpoint.moving.stable_files import check_unchanged, open_source, remember
from mslaunch.errors import NO_FILE, HoldsTorch, RequestError, ShardUnreadable

TORCH_SUFFIXES = (".pth", ".pt", ".bin")
_ZIP = b"PK\x03\x04"
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def is_torch(path: Path) -> bool:
    """Tell whether a file is of torch.save; Lightning calls them .ckpt, others .pth.tar, .pkl or anything."""
    if path.suffix in TORCH_SUFFIXES:
        return True
    return path.suffix != ".safetensors" and _head(path).startswith((_ZIP, *_PICKLES))


def _head(path: Path) -> bytes:
    """Return the first bytes, none of what is no regular file or cannot be read."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would make it wait
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.pread(fd, len(_ZIP), 0)
        finally:
            os.close(fd)
    return b""


@dataclass(frozen=True, slots=True)
class Format:
    """What can be done with one kind of file."""

    read: Callable[[int, int], Content]
    checksum: Callable[[int, int, Sequence[Tensor]], int]
    frame: Callable[[Sequence[Tensor], str], FileLayout]


FORMATS = {
    ".ckpt": Format(ckpt.read, ckpt.checksum, ckpt.frame),
    ".safetensors": Format(safetensors.read, safetensors.checksum, safetensors.frame),
}


CKPT_TYPES = {*ITEM_SIZES, "str", "Int4"}
"""The types that MindSpore reads from a .ckpt."""
LONGEST_NAME = 1_000_000
"""Bytes: a reader takes a megabyte for the head of a parameter."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What one file holds."""

    path: Path
    tensors: Mapping[str, Tensor]
    size: int
    crc: int | None = None
    redundancy_removed: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    framework: str | None = None


def format_of(path: Path) -> Format:
    if path.suffix not in FORMATS:
        if is_torch(path):
            raise HoldsTorch(str(path))
        raise RequestError(f"{path}: checkpoints end in {' or '.join(FORMATS)}. Name one of those.")
    return FORMATS[path.suffix]


def read_shard(path: Path) -> Shard:
    """Read a file's headers and check every length in them."""
    kind = format_of(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe would make it wait
    except OSError as error:
        raise ShardUnreadable(str(path), error.strerror or str(error)) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Malformed(NO_FILE)
        size = found.st_size
        if size == 0:
            raise Malformed("it is empty")
        content = kind.read(fd, size)
        tensors = _by_name(content.tensors)
    except (ValueError, OSError) as error:  # Malformed of either kind among them
        raise HoldsTorch(str(path)) if is_torch(path) else ShardUnreadable(str(path), str(error)) from None
    finally:
        os.close(fd)
    more = (content.crc, content.redundancy_removed, content.aliases, content.framework)
    return Shard(remember(path, found), tensors, size, *more)


def _by_name(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in named:
            raise Malformed(f"{tensor.name} stands in it twice")
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise Malformed(f"{tensor.name}: {len(tensor.shape)} dimensions")
        if tensor.itemsize is not None and (wanted := prod(tensor.shape) * tensor.itemsize) != tensor.nbytes:
            raise Malformed(f"{tensor.name}: {tensor.words()} takes {wanted} bytes, it holds {tensor.nbytes}")
        named[tensor.name] = tensor
    return named


def checksum(shard: Shard) -> int:
    """Compute what MindSpore records as crc_num; this reads the whole file."""
    fd = open_source(shard.path)
    try:
        found = format_of(shard.path).checksum(fd, shard.size, list(shard.tensors.values()))
        check_unchanged(fd, shard.path)
        return found
    finally:
        os.close(fd)


def check_writable(path: Path, tensor: Tensor) -> None:
    """Refuse what the readers of a new file would not take."""
    if not tensor.name:
        raise RequestError("a parameter has no name, so it cannot be written. Name it with a rule (--names).")
    if (length := len(tensor.name.encode())) > LONGEST_NAME:
        shown = f"{tensor.name[:60]}…"
        raise RequestError(f"{shown}: a name of {length} bytes; {LONGEST_NAME} are possible. Shorten it.")
    if path.suffix == ".ckpt" and tensor.dtype not in CKPT_TYPES:
        raise RequestError(
            f"{tensor.name}: {tensor.dtype} is a type that MindSpore's checkpoints do not have. Write .safetensors."
        )


def frame(path: Path, tensors: Sequence[Tensor], framework: str = "ms") -> FileLayout:
    """Lay out a new file for these tensors."""
    return format_of(path).frame(tensors, framework)
