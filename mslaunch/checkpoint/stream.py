"""Moves tensors from shards to new shards with pread and pwrite: bounded buffers, several threads, no value touched."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mslaunch.checkpoint.layout import Box, box_shape, intersection
from mslaunch.checkpoint.reshard import Assembly, Job
from mslaunch.checkpoint.shard import frame
from mslaunch.checkpoint.tensor import Frame, Part
from mslaunch.errors import NotReadyError, ShardUnreadable

BLOCK = 4 << 20
THREADS = 4

Progress = Callable[[int], None]
Bytes = npt.NDArray[np.uint8]


def write_shards(job: Job, names: Mapping[int, str], folder: Path, progress: Progress = lambda _: None) -> None:
    """Write the job's shards as folder/names[rank]. They are written beside it and renamed when all is there."""
    _check_room(job.nbytes, folder)
    beside = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    _sweep(folder)
    try:
        beside.mkdir(parents=True)
        _Writer(job, {rank: beside / name for rank, name in names.items()}, progress).run()
        if folder.is_dir():
            folder.rmdir()  # only ever an empty one
        beside.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotReadyError(
                f"{folder}: the disk is full; nothing was kept. {job.nbytes / 1e9:.1f} GB are needed: free some, "
                f"or give another -o."
            ) from None
        raise NotReadyError(f"{folder}: cannot be written: {error.strerror or error}. Give another -o.") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check_room(nbytes: int, folder: Path) -> None:
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise NotReadyError(
            f"{folder}: {nbytes / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free there. "
            f"Free some, or give another -o."
        )


def _sweep(folder: Path) -> None:
    """Remove what a killed process has left beside."""
    for left in folder.parent.glob(f".{folder.name}.partial-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


class _Writer:
    """Open files, and the threads that fill them."""

    def __init__(self, job: Job, paths: Mapping[int, Path], progress: Progress) -> None:
        self.job = job
        self.paths = paths
        self.progress = progress
        self.frames: dict[int, Frame] = {rank: frame(paths[rank], tensors) for rank, tensors in job.shards.items()}
        self.inputs: dict[Path, int] = {}
        self.outputs: dict[int, int] = {}
        self.failed = threading.Event()

    def run(self) -> None:
        with ExitStack() as opened:
            for assembly in self.job.assemblies.values():
                for _, path, _ in assembly.sources:
                    if path not in self.inputs:
                        self.inputs[path] = os.open(path, os.O_RDONLY)
                        opened.callback(os.close, self.inputs[path])
            for rank, path in self.paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                self.outputs[rank] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                opened.callback(os.close, self.outputs[rank])
                self._begin(rank)
            self._move_all()

    def _begin(self, rank: int) -> None:
        os.ftruncate(self.outputs[rank], self.frames[rank].size)
        for at, head in self.frames[rank].heads:
            os.pwrite(self.outputs[rank], head, at)

    def _move_all(self) -> None:
        pool = ThreadPoolExecutor(THREADS)
        try:
            moves = [pool.submit(self._move, name, task) for name, task in self._tasks()]
            done, _ = wait(moves, return_when=FIRST_EXCEPTION)
            for move in done:
                move.result()
        finally:
            self.failed.set()  # what is still under way stops at its next block
            pool.shutdown(wait=True, cancel_futures=True)

    def _tasks(self) -> Iterator[tuple[str, list[Box]]]:
        """Cut the work into pieces of a few blocks, so that all threads have some to the end."""
        for name, assembly in self.job.assemblies.items():
            blocks = list(cut_blocks(assembly.shape, assembly.itemsize))
            for begin in range(0, len(blocks), 8):
                yield name, blocks[begin : begin + 8]

    def _move(self, name: str, blocks: list[Box]) -> None:
        assembly = self.job.assemblies[name]
        for block in blocks:
            if self.failed.is_set():
                return
            self.progress(self._move_block(name, assembly, block))

    def _move_block(self, name: str, assembly: Assembly, block: Box) -> int:
        """Read one block of the whole tensor from its slices, and write to each target what lies in it."""
        buffer: Bytes = np.empty(_in_bytes(box_shape(block), assembly.itemsize), np.uint8)
        for place, path, tensor in assembly.sources:
            common = intersection(place, block) if block else ()
            if common is None:
                continue
            view = buffer[_within(common, block, assembly.itemsize)]
            data = view if view.flags.c_contiguous else np.empty(view.shape, np.uint8)
            self._read(path, tensor.parts, _offset(common, place, assembly.itemsize), data)
            if data is not view:
                view[...] = data
        written = 0
        for place, ranks in assembly.targets:
            common = intersection(place, block) if block else ()
            if common is None:
                continue
            piece = np.ascontiguousarray(buffer[_within(common, block, assembly.itemsize)])
            for rank in ranks:
                parts = self.frames[rank].places[name]
                self._write(self.outputs[rank], parts, _offset(common, place, assembly.itemsize), piece)
                written += piece.nbytes
        return written

    def _read(self, path: Path, parts: tuple[Part, ...], offset: int, data: Bytes) -> None:
        flat = data.reshape(-1).data
        for at, begin, length in _pieces(parts, offset, len(flat)):
            got = 0
            while got < length:
                count = os.preadv(self.inputs[path], [flat[begin + got : begin + length]], at + got)
                if count == 0:
                    raise ShardUnreadable(str(path), "it became shorter while it was read")
                got += count

    def _write(self, fd: int, parts: tuple[Part, ...], offset: int, data: Bytes) -> None:
        flat = data.reshape(-1).data
        for at, begin, length in _pieces(parts, offset, len(flat)):
            put = 0
            while put < length:
                put += os.pwrite(fd, flat[begin + put : begin + length], at + put)


def cut_blocks(shape: tuple[int, ...], itemsize: int, limit: int = BLOCK) -> Iterator[Box]:
    """Cut a tensor into blocks that are one stretch of memory, in it and in every slice of it."""
    axis, inner = 0, prod(shape[1:]) * itemsize
    while axis + 1 < len(shape) and inner > limit:
        axis += 1
        inner = prod(shape[axis + 1 :]) * itemsize
    if not shape:
        yield ()
        return
    if prod(shape) == 0:
        return
    rows = max(1, limit // inner)
    rest = tuple((0, size) for size in shape[axis + 1 :])
    for lead in np.ndindex(*shape[:axis]):
        fixed = tuple((int(index), int(index) + 1) for index in lead)
        for begin in range(0, shape[axis], rows):
            yield (*fixed, (begin, min(begin + rows, shape[axis])), *rest)


def _in_bytes(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] * itemsize) if shape else (itemsize,)


def _within(part: Box, block: Box, itemsize: int) -> tuple[slice, ...]:
    """Where a box lies in the buffer of a block."""
    cut = [slice(a - since, b - since) for (a, b), (since, _) in zip(part, block, strict=True)]
    if cut:
        cut[-1] = slice(cut[-1].start * itemsize, cut[-1].stop * itemsize)
    return tuple(cut)


def _offset(part: Box, place: Box, itemsize: int) -> int:
    """Where a box begins in the slice that holds it, in bytes."""
    at = 0
    for (since, _), (begin, end) in zip(part, place, strict=True):
        at = at * (end - begin) + since - begin
    return at * itemsize


def _pieces(parts: tuple[Part, ...], offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Yield place in the file, place in the buffer and length for a stretch of a tensor that may lie in parts."""
    begin, done = 0, 0
    for at, size in parts:
        since, to = max(offset, begin), min(offset + length, begin + size)
        if since < to:
            yield at + since - begin, done, to - since
            done += to - since
        begin += size
