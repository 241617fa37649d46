"""Whether a set of shards is what its strategy says: every rank, every parameter, every slice. All findings at once."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Literal

from mslaunch.checkpoint.formats.table import Shard, checksum, format_of
from mslaunch.checkpoint.formats.tensor import Tensor, chunks, shape_words
from mslaunch.checkpoint.moving.file_io import open_source, read_fully
from mslaunch.checkpoint.sharding.saved_files import Step
from mslaunch.checkpoint.sharding.sets import ShardSet, lacking_beside_others, read_set
from mslaunch.checkpoint.sharding.strategy import Strategy
from mslaunch.checkpoint.sharding.tensor_layout import Box, Layout, box, whole_shape
from mslaunch.errors import SeveralLines, ShardUnreadable

_COMPARED = 1 << 18
_DISTINCT = 16
"""Different values that must repeat: zeros are the same wherever a slice begins."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A parameter of which a rank's slice begins inside that of another."""

    parameter: str
    rank: int
    other: int


def find_overlaps(shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[Overlap]:
    """Look at one pair of neighbours for each parameter that is cut in a dimension other than the first."""
    for stage, layouts in strategy.stages.items():
        first = stage * strategy.stage_devices
        ranks = [rank for rank in range(first, first + strategy.stage_devices) if rank in shards]
        for name, layout in layouts.items():
            holders = [rank for rank in ranks if name in shards[rank].tensors]
            overlap = _of_parameter(name, layout, {rank: shards[rank] for rank in holders}, first)
            if overlap is not None:
                yield overlap


def _of_parameter(name: str, layout: Layout, shards: Mapping[int, Shard], first: int) -> Overlap | None:
    cut = [axis for axis, ways in enumerate(layout.cuts) if axis and ways > 1]
    if not cut or not shards:
        return None
    shape = next(iter(shards.values())).tensors[name].shape
    if len(shape) != len(layout.axes):
        return None
    whole = whole_shape(layout, shape)
    places: dict[Box, int] = {}
    for rank in shards:
        places.setdefault(box(layout, whole, rank - first), rank)
    for place, rank in places.items():
        for axis in cut:
            begin, end = place[axis]
            beside = (*place[:axis], (end, 2 * end - begin), *place[axis + 1 :])
            other = places.get(beside)
            if other is not None:
                shift = (end - begin) * prod(whole[axis + 1 :])
                return Overlap(name, rank, other) if _repeats(shards[rank], shards[other], name, shift) else None
    return None


def _repeats(one: Shard, other: Shard, name: str, shift: int) -> bool:
    """Tell whether a slice begins with what another holds behind so many elements."""
    tensor = one.tensors[name]
    size = tensor.itemsize
    if size not in (1, 2, 4, 8) or other.tensors[name].nbytes != tensor.nbytes:
        return False
    length = min(_COMPARED, tensor.nbytes - shift * size)
    if length < _DISTINCT * size:
        return False
    data = _read(one, name, shift * size, length)
    return data == _read(other, name, 0, length) and _is_varied(data, size)


def _read(shard: Shard, name: str, since: int, length: int) -> bytes:
    at, _ = shard.tensors[name].parts[0]
    data = bytearray(length)
    fd = open_source(shard.path)
    try:
        read_fully(fd, shard.path, memoryview(data), at + since)
    finally:
        os.close(fd)
    return bytes(data)


def _is_varied(data: bytes, size: int) -> bool:
    values = {data[at : at + size] for at in range(0, len(data) - size + 1, size)}
    return len(values) >= _DISTINCT


SHOWN = 8


@dataclass(frozen=True, slots=True)
class ShardFinding:
    """One thing that is wrong with a set, or may be."""

    what: str
    rank: int | None = None
    file: str | None = None
    parameter: str | None = None
    expected: str | None = None
    found: str | None = None
    severity: Literal["error", "warning"] = "error"

    def words(self) -> str:
        place = [f"rank {self.rank}" if self.rank is not None else "", self.file or "", self.parameter or ""]
        told = [f"expected {self.expected}" if self.expected else "", f"found {self.found}" if self.found else ""]
        where = ", ".join(filter(None, place))
        detail = ", ".join(filter(None, told))
        return f"{self.severity}: {where + ': ' if where else ''}{self.what}{': ' + detail if detail else ''}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found, and what was read on the way."""

    findings: tuple[ShardFinding, ...]
    shards: Mapping[int, Shard]

    @property
    def errors(self) -> tuple[ShardFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


def verify(found: ShardSet, strategy: Strategy | None, replicas: bool = False, content: bool = True) -> Verified:
    """Check a set against its strategy; `content` also compares recorded checksums, `replicas` equal slices."""
    read = read_set(found)
    lone = strategy is not None and strategy.lone_stage is not None
    shards = {rank: shard for rank, shard in read.items() if isinstance(shard, Shard)}
    findings = [
        *_newer_steps(found),
        *_earlier_runs(found),
        *_unreadable(found, read),
        *_faults(found, strategy),
        *(_less_than_others(found, shards) if strategy is None else ()),
        *(_ranks(found, strategy) if strategy else ()),
        *(_parameters(found, shards, strategy) if strategy and not lone else ()),
        *(_checksums(found, shards) if content and not found.checked else ()),
        *(_replicas(found, shards, strategy, replicas) if content and strategy and not lone else ()),
        *(_overlaps(found, shards, strategy) if content and strategy and not lone else ()),
    ]
    return Verified(tuple(findings), shards)


def _newer_steps(found: ShardSet) -> Iterator[ShardFinding]:
    for newer in found.passed_over:
        ranks = sorted(newer.faults)
        listed = ", ".join(map(str, ranks[:SHOWN])) + (" and more" if len(ranks) > SHOWN else "")
        faults = newer.faults.values()
        what = f"is newer, but missing or cut short on rank {listed}"
        for fault in faults:
            if fault.kind in ("parameters", "checksum"):
                what = f"is newer, but not whole on rank {listed} ({fault.what})"
        yield ShardFinding(f"{step_words(newer.saved.step)} {what}", severity="warning")


def _earlier_runs(found: ShardSet) -> Iterator[ShardFinding]:
    if found.earlier_run is not None:
        what = f"{found.earlier_run} has a later step, but is of an earlier run in the same folder"
        yield ShardFinding(what, severity="warning")


def _faults(found: ShardSet, strategy: Strategy | None) -> Iterator[ShardFinding]:
    """What is wrong with a step, where none is complete; what other checks report is left to them."""
    for rank, fault in sorted(found.faults.items()):
        if fault.kind == "parameters":
            yield ShardFinding(fault.what, rank, found.name_of(rank))
        elif fault.kind == "missing" and strategy is None:
            yield ShardFinding(f"no checkpoint of {step_words(found.step)}, which other ranks have", rank)


def _less_than_others(found: ShardSet, shards: Mapping[int, Shard]) -> Iterator[ShardFinding]:
    """Without a strategy nothing says which ranks have the same parameters: a stage of a pipeline has its own."""
    for rank in shards:
        what = lacking_beside_others(rank, shards)
        if what is not None:
            yield ShardFinding(what, rank, found.name_of(rank), severity="warning")


def step_words(step: Step | None) -> str:
    return f"step {step[0]}_{step[1]}" if step else "the file"


def _unreadable(found: ShardSet, read: Mapping[int, Shard | ShardUnreadable]) -> Iterator[ShardFinding]:
    for rank, shard in read.items():
        if isinstance(shard, ShardUnreadable):
            yield ShardFinding(shard.what, rank, found.name_of(rank))


def _ranks(found: ShardSet, strategy: Strategy) -> Iterator[ShardFinding]:
    if strategy.lone_stage is not None:
        stage = f"{strategy.name} is stage {strategy.lone_stage} of a pipeline alone"
        yield ShardFinding(f"{stage}; merge its stages: mslaunch strategy merge")
        return
    for rank in range(strategy.world_size):
        if rank not in found.files:
            of = f" of step {found.step[0]}_{found.step[1]}" if found.step else ""
            yield ShardFinding(f"no checkpoint{of}", rank, expected=f"one for each of {strategy.world_size} ranks")
    yield from _same_files(found, strategy)
    beyond = sorted(rank for rank in found.files if rank >= strategy.world_size)
    if beyond:
        yield ShardFinding(
            f"{len(beyond)} more ranks than the strategy has (rank {beyond[0]} to {beyond[-1]})",
            expected=f"{strategy.world_size} ranks",
            found=f"{len(found.files)}; a strategy of one pipeline stage alone? `mslaunch strategy merge` joins them",
        )


def _same_files(found: ShardSet, strategy: Strategy) -> Iterator[ShardFinding]:
    """Ranks with different slices cannot have one and the same file."""
    if strategy.tensor_parallel == strategy.optimizer_parallel == len(strategy.stages) == 1:
        return
    first: dict[object, int] = {}
    for rank, path in found.files.items():
        known = first.setdefault(path.resolve(), rank)
        if known != rank:
            yield ShardFinding(f"is the same file as rank {known}'s", rank, found.name_of(rank))


def is_derived(name: str, names: set[str]) -> bool:
    """Tell whether a parameter belongs to another (moment1.W to W); a checkpoint may leave such out."""
    parts = name.split(".")
    return any(".".join(parts[index:]) in names for index in range(1, len(parts)))


def _parameters(found: ShardSet, shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[ShardFinding]:
    """Every parameter on every rank of its stage, alike in shape and type."""
    names = strategy.names()
    held = {name for shard in shards.values() for name in shard.tensors}
    if shards and not names & held:
        example = sorted(held)[:2]
        yield ShardFinding(
            "no parameter of the strategy is in the checkpoint; it belongs to another network",
            expected=f"for example {min(names)}",
            found=", ".join(example) or "no parameters",
        )
        return
    for name in sorted(names - held):
        if shards and not is_derived(name, names):
            yield ShardFinding("on no rank", parameter=name, expected="the strategy lists it")
    whole: dict[str, tuple[int, ...]] = {}
    for stage, layouts in strategy.stages.items():
        ranks = range(stage * strategy.stage_devices, (stage + 1) * strategy.stage_devices)
        here = {rank: shards[rank] for rank in ranks if rank in shards}
        for name in sorted(layouts.keys() & held):
            yield from _parameter(found, here, name, layouts[name], whole)


def _parameter(
    found: ShardSet, here: Mapping[int, Shard], name: str, layout: Layout, whole: dict[str, tuple[int, ...]]
) -> Iterator[ShardFinding]:
    tensors = {rank: shard.tensors[name] for rank, shard in here.items() if name in shard.tensors}
    for rank, shard in here.items():
        if rank not in tensors and not shard.redundancy_removed:
            yield ShardFinding(
                "missing", rank, found.name_of(rank), name, expected="as on the other ranks of its stage"
            )
    if not tensors:
        return
    usual, kind = _usual(tensors, layout)
    for rank, tensor in tensors.items():
        where = (rank, found.name_of(rank), name)
        if len(tensor.shape) != len(layout.axes):
            cut = f"{len(layout.axes)} dimensions, as the strategy's layout has"
            yield ShardFinding("wrong shape", *where, expected=cut, found=shape_words(tensor.shape))
        elif tensor.shape != usual:
            yield ShardFinding("wrong slice", *where, expected=shape_words(usual), found=shape_words(tensor.shape))
        if tensor.dtype != kind:
            yield ShardFinding("wrong type", *where, expected=kind, found=tensor.dtype)
    if len(usual) == len(layout.axes):
        full = whole_shape(layout, usual)
        if whole.setdefault(name, full) != full:
            words = shape_words(whole[name])
            yield ShardFinding("stages disagree on its whole shape", None, None, name, words, shape_words(full))


def _usual(tensors: Mapping[int, Tensor], layout: Layout) -> tuple[tuple[int, ...], str]:
    """The shape and type that slices should have: by the strategy where it tells the whole shape, else as most have."""
    shape = Counter(tensor.shape for tensor in tensors.values()).most_common(1)[0][0]
    if layout.shape is not None and len(layout.shape) == len(layout.axes):
        shape = tuple(size // cut for size, cut in zip(layout.shape, layout.cuts, strict=True))
    return shape, Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0]


def _in_threads(work: Callable[[int], ShardFinding | None], ranks: list[int]) -> Iterator[ShardFinding]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from filter(None, pool.map(work, ranks))


def _checksums(found: ShardSet, shards: Mapping[int, Shard]) -> Iterator[ShardFinding]:
    def check(rank: int) -> ShardFinding | None:
        shard = shards[rank]
        try:
            real = checksum(shard)
        except (OSError, ValueError) as error:
            return ShardFinding(f"cannot be read: {error}", rank, found.name_of(rank))
        if real == shard.crc:
            return None
        return ShardFinding(
            "its bytes have changed (crc_num)", rank, found.name_of(rank), None, str(shard.crc), str(real)
        )

    yield from _in_threads(check, [rank for rank, shard in shards.items() if shard.crc is not None])


def _replicas(found: ShardSet, shards: Mapping[int, Shard], strategy: Strategy, listed: bool) -> Iterator[ShardFinding]:
    """Slices that several ranks hold must be the same, bit by bit; those that are not listed always, they are few."""
    if not any(strategy.names() & shard.tensors.keys() for shard in shards.values()):
        return  # another network's: nothing of it is listed
    groups = _same_slices(shards, strategy, listed)
    wanted: dict[int, set[str]] = defaultdict(set)
    for (name, _), ranks in groups.items():
        for rank in ranks if len(ranks) > 1 else ():
            wanted[rank].add(name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = dict(zip(wanted, pool.map(lambda rank: _digests(shards[rank], wanted[rank]), wanted), strict=True))
    for (name, place), ranks in groups.items():
        first = ranks[0]
        for rank in ranks[1:]:
            if digests[rank][name] != digests[first][name]:
                where = (rank, found.name_of(rank), name, f"the bytes of rank {first}", "others")
                if place is not None:
                    yield ShardFinding("differs from its replica", *where)
                else:
                    one = prod(shards[rank].tensors[name].shape) == 1
                    what = "is not in the strategy, and differs between ranks"
                    yield ShardFinding(what, *where, severity="warning" if one else "error")


def _overlaps(found: ShardSet, shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[ShardFinding]:
    """Warn of slices that MindSpore's own transform has written wrong."""
    written = {rank: shard for rank, shard in shards.items() if format_of(shard.path).may_overlap}
    overlaps = list(find_overlaps(written, strategy))
    if overlaps:
        first = overlaps[0]
        more = f", and so do {len(overlaps) - 1} more parameters" if len(overlaps) > 1 else ""
        yield ShardFinding(
            f"begins inside the slice of rank {first.rank}{more}. MindSpore's transform_checkpoints writes such values "
            f"with safetensors 0.8: make the set again with `mslaunch ckpt reshard`, or with safetensors 0.7",
            first.other,
            found.name_of(first.other),
            first.parameter,
            severity="warning",
        )


def _same_slices(
    shards: Mapping[int, Shard], strategy: Strategy, listed: bool
) -> dict[tuple[str, Box | None], list[int]]:
    """Which ranks hold the same slice of a parameter; without a place those of what the strategy does not list."""
    groups: dict[tuple[str, Box | None], list[int]] = defaultdict(list)
    for rank, shard in shards.items():
        for name, tensor in shard.tensors.items() if rank < strategy.world_size else ():
            layout = strategy.of_rank(rank).get(name)
            if layout is None:
                groups[(name, None)].append(rank)
            elif listed and len(layout.axes) == len(tensor.shape):
                place = box(layout, whole_shape(layout, tensor.shape), rank % strategy.stage_devices)
                groups[(name, place)].append(rank)
    return groups


def _digests(shard: Shard, names: set[str]) -> dict[str, bytes]:
    import hashlib  # not for every start: it loads OpenSSL

    result = {}
    try:
        with shard.path.open("rb") as file:
            for name in names:
                digest = hashlib.blake2b(digest_size=16)
                for part in shard.tensors[name].parts:
                    for data in chunks(file.fileno(), *part):
                        digest.update(data)
                result[name] = digest.digest()
    except (OSError, ValueError) as error:
        raise ShardUnreadable(str(shard.path), str(error)) from None
    return result


class SetIsWrong(SeveralLines):
    """A set that cannot be used, with everything that is wrong with it."""

    def __init__(self, found: ShardSet, errors: tuple[ShardFinding, ...]) -> None:
        shown = [f"{found.folder}: {finding.words()}" for finding in errors[:SHOWN]]
        if len(errors) > SHOWN:
            shown.append(f"{found.folder}: and {len(errors) - SHOWN} more; `mslaunch ckpt verify` lists all")
        super().__init__(shown)
