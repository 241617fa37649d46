"""Moves tensors from shards to new shards, block by block: bounded buffers, several threads, no value touched."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from mslaunch.checkpoint.formats.table import check_writable, frame
from mslaunch.checkpoint.formats.tensor import FileLayout, Part, Tensor, pieces
from mslaunch.checkpoint.moving.blocks import (
    copy_box,
    cut_blocks,
    offset_of,
    one_stretch,
    row_length,
    row_places,
    within,
)
from mslaunch.checkpoint.moving.file_io import NewFile, OutputFile, check_unchanged, open_source, read_fully, read_some
from mslaunch.checkpoint.moving.views import TensorView, bytes_of, read_box
from mslaunch.checkpoint.sharding.strategy import Box, box_shape, intersection
from mslaunch.open_files import room_for

if TYPE_CHECKING:
    from mslaunch.checkpoint.sharding.reshard import Assembly, ReshardPlan

LONG_RUN = 64 << 10
"""From here on a run is worth a call of its own."""
SHORT_RUN = 1 << 10
"""Below, the kernel had better not be given each run."""


@dataclass(frozen=True, slots=True)
class Runs:
    """What one slice holds of one box, as runs of bytes that are one stretch in both."""

    source: int
    target: int
    length: int
    source_places: tuple[int, ...]
    target_places: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlan:
    """The runs of all slices and boxes, and which way they are best moved; none where they are too short."""

    runs: tuple[Runs, ...]
    direct: bool
    """Each run is long, or alone: it is written as it was read."""
    scattered: bool
    """Every byte of the slices goes to one box, in runs that the kernel can read into their places."""


@lru_cache(maxsize=32)
def plan_block(sources: tuple[Box, ...], targets: tuple[Box, ...], itemsize: int, nbytes: int) -> BlockPlan:
    """Plan a block of `nbytes`, given what each slice and each box has of it; one block is cut like the next."""
    pairs = [
        (number, other, common)
        for other, target in enumerate(targets)
        for number, source in enumerate(sources)
        if (common := intersection(source, target)) is not None
    ]
    runs: list[Runs] = []
    for number, other, common in pairs:
        around = (sources[number], targets[other])
        length = min(row_length(common, box, itemsize) for box in around)
        if length < min(SHORT_RUN, prod(box_shape(common)) * itemsize):
            return BlockPlan((), direct=False, scattered=False)
        places = (_places(common, box, itemsize, length) for box in around)
        runs.append(Runs(number, other, length, *places))
    direct = all(run.length >= LONG_RUN or len(run.source_places) == 1 for run in runs)
    once = sum(run.length * len(run.source_places) for run in runs) == nbytes
    return BlockPlan(tuple(runs), direct, scattered=once)


def _places(common: Box, around: Box, itemsize: int, length: int) -> tuple[int, ...]:
    row = row_length(common, around, itemsize)
    return tuple(place + more for place in row_places(common, around, itemsize) for more in range(0, row, length))


BLOCK = 4 << 20
THREADS = min(8, os.cpu_count() or 2)
IOV_MAX = 1024

Progress = Callable[[int], None]


class _Slice:
    """What one file holds of a block."""

    __slots__ = ("at", "box", "content", "fd", "offset", "path", "place", "size")

    def __init__(self, fd: int, source: tuple[Box, Path, Tensor | TensorView], box: Box, itemsize: int) -> None:
        self.fd = fd
        self.place, self.path, self.content = source
        """What the whole slice is of its parameter, and where it lies."""
        self.box = box
        """What of it lies in the block."""
        self.offset = offset_of(box, self.place, itemsize)
        self.size = prod(box_shape(box)) * itemsize
        self.at = (
            None if isinstance(self.content, TensorView) else one_stretch(self.content.parts, self.offset, self.size)
        )
        """Where its bytes lie in the file, if they are in one stretch there."""

    def load(self, room: memoryview) -> memoryview:
        """Return its bytes: read into this buffer, or computed."""
        if isinstance(self.content, TensorView):
            here = within(self.box, self.place)
            return bytes_of(read_box(self.fd, self.path, self.content, here))
        for at, begin, length in pieces(self.content.parts, self.offset, self.size):
            read_fully(self.fd, self.path, room[begin : begin + length], at)
        return room[: self.size]


class _Target:
    """What the new files want of a block."""

    __slots__ = ("box", "outputs", "size")

    def __init__(self, box: Box, outputs: list[tuple[OutputFile, tuple[Part, ...], int]], itemsize: int) -> None:
        self.box = box
        self.outputs = outputs
        """Open files, where the parameter lies in each, and where the box begins in that."""
        self.size = prod(box_shape(box)) * itemsize

    def write(self, data: memoryview, place: int = 0) -> None:
        for output, parts, offset in self.outputs:
            for at, begin, length in pieces(parts, offset + place, len(data)):
                output.put(data[begin : begin + length], at)

    def busy(self) -> bool:
        """Whether another thread is writing there just now."""
        return any(output.busy() for output, _, _ in self.outputs)


_Vector = tuple[list[memoryview], int]
"""Rows that the kernel fills in one call, and how many bytes they take."""


class _Scratch(threading.local):
    """Two buffers a thread, used again for every block: fresh memory would cost more than the copying."""

    def __init__(self) -> None:
        self.incoming = memoryview(mmap.mmap(-1, BLOCK))
        self.outgoing = memoryview(mmap.mmap(-1, BLOCK))
        self.rows = lru_cache(maxsize=8)(self._rows)

    def _rows(self, plan: BlockPlan, begins: tuple[int, ...]) -> list[list[_Vector]]:
        """Where the bytes of each slice go in the outgoing buffer, in order; each box begins at its place there."""
        places: list[list[tuple[int, int, int]]] = [[] for _ in range(1 + max(runs.source for runs in plan.runs))]
        for runs in plan.runs:
            for since, to in zip(runs.source_places, runs.target_places, strict=True):
                places[runs.source].append((since, begins[runs.target] + to, runs.length))
        vectors: list[list[_Vector]] = []
        for some in places:
            rows = [self.outgoing[to : to + length] for _, to, length in sorted(some)]
            parts = [rows[at : at + IOV_MAX] for at in range(0, len(rows), IOV_MAX)]
            vectors.append([(part, sum(map(len, part))) for part in parts])
        return vectors


class ShardWriter:
    """Open files, and the threads that fill them; `open_output` opens each."""

    def __init__(
        self,
        job: ReshardPlan,
        paths: Mapping[int, Path],
        progress: Progress,
        open_output: Callable[[Path, FileLayout], OutputFile] = NewFile,
    ) -> None:
        self.job = job
        self.paths = paths
        self.progress = progress
        self.open_output = open_output
        for rank, tensors in job.shards.items():
            for tensor in tensors:
                check_writable(paths[rank], tensor)
        self.frames: dict[int, FileLayout] = {
            rank: frame(paths[rank], tensors, job.framework) for rank, tensors in job.shards.items()
        }
        self.inputs: dict[Path, int] = {}
        self.outputs: dict[int, OutputFile] = {}
        self.failed = threading.Event()
        self.scratch = _Scratch()

    def run(self) -> None:
        paths = (path for assembly in self.job.assemblies for _, path, _ in assembly.sources)
        sources = {id(path): path for path in paths}.values()  # once for each version of a file
        with room_for(len(sources) + len(self.paths)), ExitStack() as opened:
            for path in sources:
                if path in self.inputs:  # read twice, and perhaps changed in between
                    check_unchanged(self.inputs[path], path)
                    continue
                self.inputs[path] = open_source(path)
                opened.callback(os.close, self.inputs[path])
            for rank, path in self.paths.items():
                self.outputs[rank] = self.open_output(path, self.frames[rank])
                opened.callback(os.close, self.outputs[rank].fd)
            self._move_all()
            for path in sources:
                check_unchanged(self.inputs[path], path)

    def _move_all(self) -> None:
        pool = ThreadPoolExecutor(THREADS)
        try:
            with _undisturbed():
                moves = []
                for assembly in self.job.assemblies:
                    blocks = list(cut_blocks(assembly.shape, assembly.itemsize, BLOCK))
                    for begin in range(0, len(blocks), 8):  # a few at a time, so that all threads have some to the end
                        moves.append(pool.submit(self._move, assembly, blocks[begin : begin + 8]))
            done, _ = wait(moves, return_when=FIRST_EXCEPTION)
            for move in done:
                move.result()
        finally:
            self.failed.set()  # what is still under way stops at its next block
            pool.shutdown(wait=True, cancel_futures=True)

    def _move(self, assembly: Assembly, blocks: list[Box]) -> None:
        for block in blocks:
            if self.failed.is_set():
                return
            self.progress(self._move_block(assembly, block))

    def _move_block(self, assembly: Assembly, block: Box) -> int:
        """Move one block of the whole tensor from its slices to every target that has part of it."""
        itemsize = assembly.itemsize
        slices = [
            _Slice(self.inputs[source[1]], source, common, itemsize)
            for source in assembly.sources
            if (common := intersection(source[0], block)) is not None
        ]
        targets = []
        for place, ranks in assembly.targets:
            common = intersection(place, block)
            if common is not None:
                offset = offset_of(common, place, itemsize)
                outputs = [(self.outputs[rank], self.frames[rank].places[assembly.name], offset) for rank in ranks]
                targets.append(_Target(common, outputs, itemsize))
        source_boxes, target_boxes = (tuple(within(part.box, block) for part in parts) for parts in (slices, targets))
        plan = plan_block(source_boxes, target_boxes, itemsize, prod(box_shape(block)) * itemsize)
        if plan.direct:
            self._move_runs(plan, slices, targets)
        elif plan.scattered and all(part.at is not None for part in slices):
            self._scatter(plan, slices, targets)
        else:
            self._copy_boxes(slices, targets, itemsize)
        return sum(target.size * len(target.outputs) for target in targets)

    def _move_runs(self, plan: BlockPlan, slices: list[_Slice], targets: list[_Target]) -> None:
        for number, part in enumerate(slices):
            data = part.load(self.scratch.incoming)
            for runs in plan.runs:
                if runs.source == number:
                    for since, to in zip(runs.source_places, runs.target_places, strict=True):
                        targets[runs.target].write(data[since : since + runs.length], to)

    def _scatter(self, plan: BlockPlan, slices: list[_Slice], targets: list[_Target]) -> None:
        """Let the kernel read each slice into the rows of all boxes, and write these."""
        *begins, _ = accumulate((target.size for target in targets), initial=0)
        for part, vectors in zip(slices, self.scratch.rows(plan, tuple(begins)), strict=True):
            at = part.at or 0
            for rows, size in vectors:
                if read_some(part.fd, part.path, rows, at) < size:  # rare: take it row by row
                    for begin, row in zip(accumulate(map(len, rows), initial=at), rows, strict=False):
                        read_fully(part.fd, part.path, row, begin)
                at += size
        left = list(zip(targets, begins, strict=True))
        while left:
            free = (number for number, (target, _) in enumerate(left) if not target.busy())
            target, begin = left.pop(next(free, 0))
            target.write(self.scratch.outgoing[begin : begin + target.size])

    def _copy_boxes(self, slices: list[_Slice], targets: list[_Target], itemsize: int) -> None:
        ends = accumulate((part.size for part in slices), initial=0)
        loaded = [part.load(self.scratch.incoming[begin:]) for part, begin in zip(slices, ends, strict=False)]
        for target in targets:
            piece = self.scratch.outgoing[: target.size]
            for part, data in zip(slices, loaded, strict=True):
                common = intersection(part.box, target.box)
                if common is not None:
                    copy_box(common, data, part.box, piece, target.box, itemsize)
            target.write(piece)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: a handler's exception, while a thread is just being started, would take that thread apart."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
