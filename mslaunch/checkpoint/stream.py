"""Moves tensors from shards to new shards with pread and pwrite: bounded buffers, several threads, no value touched."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import accumulate, count
from math import prod
from pathlib import Path

from mslaunch.checkpoint.blocks import copy_box, cut_blocks, is_stretch, offset_of, pieces, row_places
from mslaunch.checkpoint.file_copy import WORTH_IT, KernelCopy
from mslaunch.checkpoint.layout import Box, box_shape, intersection
from mslaunch.checkpoint.reshard import Assembly, ReshardPlan
from mslaunch.checkpoint.shard import frame
from mslaunch.checkpoint.tensor import FileLayout, Part, Tensor
from mslaunch.checkpoint.views import View, bytes_of, read_box, read_fully
from mslaunch.errors import NotReadyError, RequestError

BLOCK = 4 << 20
WRITE = 512 << 10  # one pwrite of 4 MB costs Linux 6 with large folios several times the CPU of eight of 512 KB
THREADS = min(8, os.cpu_count() or 2) + 1  # one more than cores, for the one that waits

SHORT_ROW = 1024
IOV_MAX = 1024

Progress = Callable[[int], None]
_Output = tuple[int, tuple[Part, ...]]
"""An open file, and where the parameter at hand lies in it."""


def write_shards(
    job: ReshardPlan,
    names: Mapping[int, str],
    folder: Path,
    extra: Mapping[str, bytes] | None = None,
    progress: Progress = lambda _: None,
) -> None:
    """Write the job's shards as folder/names[rank], and `extra` beside them; renamed only when all is there."""
    with _beside(job, folder) as beside:
        _Writer(job, {rank: beside / name for rank, name in names.items()}, progress).run()
        for name, content in (extra or {}).items():
            (beside / name).write_bytes(content)
        if folder.is_dir():
            folder.rmdir()  # only ever an empty one
        beside.rename(folder)


def write_file(job: ReshardPlan, path: Path, progress: Progress = lambda _: None) -> None:
    """Write a job of one shard to a file."""
    with _beside(job, path) as beside:
        _Writer(job, dict.fromkeys(job.shards, beside / path.name), progress).run()
        (beside / path.name).rename(path)


@contextmanager
def _beside(job: ReshardPlan, target: Path) -> Iterator[Path]:
    """A folder beside the target to write in; whatever happens, it is gone in the end."""
    _check_room(job.nbytes, target)
    _sweep(target)
    beside = target.with_name(f".{target.name}.partial-{os.getpid()}")
    ours = not beside.exists()  # asked before, since a signal may come just when it was made
    try:
        beside.mkdir(parents=True)
        yield beside
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotReadyError(
                f"{target}: the disk is full; nothing was kept. {job.nbytes / 1e6:,.0f} MB are needed: free some, "
                f"or give another -o."
            ) from None
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RequestError(f"{target}: is there already. Give another -o, or remove it.") from None
        raise NotReadyError(f"{target}: cannot be written: {error.strerror or error}. Give another -o.") from None
    finally:
        if ours:
            shutil.rmtree(beside, ignore_errors=True)


def _check_room(nbytes: int, folder: Path) -> None:
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(place).free
    if free < nbytes:
        raise NotReadyError(
            f"{folder}: {nbytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free there. "
            f"Free some, or give another -o."
        )


def _sweep(folder: Path) -> None:
    """Remove what a killed process has left beside."""
    for left in folder.parent.glob(f".{folder.name}.partial-*"):
        pid = left.name.rpartition("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: a handler's exception, while a thread is just being started, would take that thread apart."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Scratch(threading.local):
    """Two buffers a thread, used again for every block: fresh memory would cost more than the copying."""

    def __init__(self) -> None:
        self.incoming = memoryview(bytearray(BLOCK))
        self.outgoing = memoryview(bytearray(BLOCK))
        self.rows = lru_cache(maxsize=8)(self._rows)  # one block is cut like the next

    def _rows(self, part: Box, shape: tuple[int, ...], itemsize: int) -> list[memoryview]:
        """The rows of a part of a box of this shape, in the buffer; none if the kernel had better not fill them."""
        length, places = row_places(part, tuple((0, size) for size in shape), itemsize)
        if len(places) > 1 and length < SHORT_ROW:
            return []
        return [self.outgoing[place : place + length] for place in places]


class _Slice:
    """What one file holds of a block, and its bytes once they were read."""

    __slots__ = ("box", "content", "data", "offset", "path", "place")

    def __init__(self, place: Box, path: Path, content: Tensor | View, box: Box, itemsize: int) -> None:
        self.path = path
        self.place = place
        """What the whole slice is of its parameter."""
        self.content = content
        self.box = box
        """What of it lies in the block."""
        self.offset = offset_of(box, place, itemsize)
        self.data: memoryview | None = None

    def stretch(self, length: int) -> int | None:
        """Where its bytes lie in the file, if they are in one stretch there."""
        if isinstance(self.content, View):
            return None
        places = list(pieces(self.content.parts, self.offset, length))
        return places[0][0] if len(places) == 1 else None

    def holds_as_stretch(self, wanted: Box) -> bool:
        """Its file holds all of a box, in order."""
        whole = intersection(self.box, wanted) == wanted
        return whole and not isinstance(self.content, View) and is_stretch(wanted, self.place)


class _Writer:
    """Open files, and the threads that fill them."""

    def __init__(self, job: ReshardPlan, paths: Mapping[int, Path], progress: Progress) -> None:
        self.job = job
        self.paths = paths
        self.progress = progress
        self.frames: dict[int, FileLayout] = {
            rank: frame(paths[rank], tensors, job.framework) for rank, tensors in job.shards.items()
        }
        self.inputs: dict[Path, int] = {}
        self.outputs: dict[int, int] = {}
        self.failed = threading.Event()
        self.scratch = _Scratch()
        self.kernel = KernelCopy()
        self.turn = count()

    def run(self) -> None:
        with ExitStack() as opened:
            for assembly in self.job.assemblies:
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
            with _undisturbed():
                moves = [pool.submit(self._move, *task) for task in self._tasks()]
            done, _ = wait(moves, return_when=FIRST_EXCEPTION)
            for move in done:
                move.result()
        finally:
            self.failed.set()  # what is still under way stops at its next block
            pool.shutdown(wait=True, cancel_futures=True)

    def _tasks(self) -> Iterator[tuple[Assembly, list[Box]]]:
        """Cut the work into pieces of a few blocks, so that all threads have some to the end."""
        for assembly in self.job.assemblies:
            blocks = list(cut_blocks(assembly.shape, assembly.itemsize, BLOCK))
            for begin in range(0, len(blocks), 8):
                yield assembly, blocks[begin : begin + 8]

    def _move(self, assembly: Assembly, blocks: list[Box]) -> None:
        for block in blocks:
            if self.failed.is_set():
                return
            self.progress(self._move_block(assembly, block))

    def _move_block(self, assembly: Assembly, block: Box) -> int:
        """Read one block of the whole tensor from its slices, and write to each target what lies in it."""
        itemsize = assembly.itemsize
        slices = [
            _Slice(place, path, content, common, itemsize)
            for place, path, content in assembly.sources
            if (common := intersection(place, block)) is not None
        ]
        room = self.scratch.incoming
        written = 0
        first = next(self.turn) % len(assembly.targets)  # two threads would wait for each other at one file
        for place, ranks in (*assembly.targets[first:], *assembly.targets[:first]):
            common = intersection(place, block)
            if common is None:
                continue
            size = prod(box_shape(common)) * itemsize
            outputs = [(self.outputs[rank], self.frames[rank].places[assembly.name]) for rank in ranks]
            offset = offset_of(common, place, itemsize)
            written += size * len(ranks)
            if self._copy(slices, common, outputs, offset, size, itemsize):
                continue
            piece = self.scratch.outgoing[:size]
            for one in slices:
                room = self._fill(piece, common, one, room, itemsize)
            for fd, parts in outputs:
                self._write(fd, parts, offset, piece)
        return written

    def _copy(
        self, slices: list[_Slice], wanted: Box, outputs: list[_Output], offset: int, size: int, itemsize: int
    ) -> bool:
        """Let the kernel copy what is one stretch in source and target; False where it is not, or the kernel cannot."""
        if size < WORTH_IT or not self.kernel.works:
            return False
        one = next((one for one in slices if one.holds_as_stretch(wanted)), None)
        if one is None or isinstance(one.content, View):
            return False
        begin = offset_of(wanted, one.place, itemsize)
        copies = [
            (at + more, fd, to, part)
            for fd, parts in outputs
            for at, done, length in pieces(one.content.parts, begin, size)
            for to, more, part in pieces(parts, offset + done, length)
        ]
        if any((at - to) % mmap.PAGESIZE for at, _, to, _ in copies):
            return False  # each page would be put together of two: dearer than a buffer
        return all(self.kernel.copy(self.inputs[one.path], one.path, *copy) for copy in copies)

    def _fill(self, piece: memoryview, wanted: Box, one: _Slice, room: memoryview, itemsize: int) -> memoryview:
        """Put what a slice holds of a box into its piece; return the room that is left for slices.

        A slice that lies in the box entirely is read straight into place. Of others only a part is wanted: they are
        read once and kept, since the rest belongs to other boxes.
        """
        common = intersection(one.box, wanted)
        if common is None:
            return room
        size = prod(box_shape(one.box)) * itemsize
        if common == one.box and (place := one.stretch(size)) is not None:
            here = tuple((a - since, b - since) for (a, b), (since, _) in zip(common, wanted, strict=True))
            if rows := self.scratch.rows(here, box_shape(wanted), itemsize):
                self._scatter(one, place, rows)
                return room
        if one.data is None:
            one.data, room = self._load(one, room, size)
        copy_box(common, one.data, one.box, piece, wanted, itemsize)
        return room

    def _load(self, one: _Slice, room: memoryview, size: int) -> tuple[memoryview, memoryview]:
        """Read what a slice holds of the block; return it and the room that is left."""
        fd = self.inputs[one.path]
        if isinstance(one.content, View):
            here = tuple((a - since, b - since) for (a, b), (since, _) in zip(one.box, one.place, strict=True))
            return bytes_of(read_box(fd, one.path, one.content, here)), room
        data = room[:size]
        for at, begin, length in pieces(one.content.parts, one.offset, size):
            read_fully(fd, one.path, data[begin : begin + length], at)
        return data, room[size:]

    def _scatter(self, one: _Slice, at: int, rows: list[memoryview]) -> None:
        """Let the kernel read one stretch of a file into many rows."""
        fd = self.inputs[one.path]
        for first in range(0, len(rows), IOV_MAX):
            some = rows[first : first + IOV_MAX]
            wanted = sum(map(len, some))
            if os.preadv(fd, some, at) < wanted:  # rare: take it row by row
                for row, begin in zip(some, accumulate(map(len, some), initial=at), strict=False):
                    read_fully(fd, one.path, row, begin)
            at += wanted

    def _write(self, fd: int, parts: tuple[Part, ...], offset: int, data: memoryview) -> None:
        for at, begin, length in pieces(parts, offset, len(data)):
            put = 0
            while put < length:
                put += os.pwrite(fd, data[begin + put : begin + min(put + WRITE, length)], at + put)
