"""Checks a set of shards against its strategy: every rank, parameter and slice. Reports all findings at once."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from mslaunch.checkpoint.formats.table import Shard, format_of
from mslaunch.checkpoint.formats.tensor import chunks, shape_words
from mslaunch.checkpoint.sharding.saved_files import Step
from mslaunch.checkpoint.sharding.sets import ShardSet, checksum_faults, lacking_beside_others, read_stretch
from mslaunch.checkpoint.sharding.strategy import Box, Layout, Strategy, box, whole_shape
from mslaunch.errors import MslaunchError, ShardUnreadable

_COMPARED = 1 << 18
_DISTINCT = 16
"""Different values that must repeat: zeros are the same wherever a slice begins."""
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
        places = [self.file, self.parameter]
        if self.rank is not None:
            places.insert(0, f"rank {self.rank}")
        text = self.what
        if any(places):
            text = f"{', '.join(filter(None, places))}: {text}"
        details = []
        if self.expected:
            details.append(f"expected {self.expected}")
        if self.found:
            details.append(f"found {self.found}")
        if details:
            text = f"{text}: {', '.join(details)}"
        return f"{self.severity}: {text}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found, and what was read on the way."""

    findings: tuple[ShardFinding, ...]
    shards: Mapping[int, Shard]

    @property
    def errors(self) -> tuple[ShardFinding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


def verify(shard_set: ShardSet, strategy: Strategy | None, replicas: bool = False, content: bool = True) -> Verified:
    """Check a set against its strategy; `content` also compares recorded checksums, `replicas` equal slices."""
    shards = {rank: shard for rank, shard in shard_set.read.items() if isinstance(shard, Shard)}
    findings = [*_warn_of_steps(shard_set), *_check_files(shard_set, strategy)]
    is_alone = strategy is not None and strategy.lone_stage is not None
    if strategy is None:
        # Warned of only: a rank may be of another stage of a pipeline, with other parameters.
        for rank in shards:
            what = lacking_beside_others(rank, shards)
            if what is not None:
                findings.append(ShardFinding(what, rank, shard_set.name_of(rank), severity="warning"))
    elif is_alone:
        stage = f"{strategy.name} is stage {strategy.lone_stage} of a pipeline alone"
        findings.append(ShardFinding(f"{stage}; merge its stages: mslaunch strategy merge"))
    else:
        findings += [*_check_ranks(shard_set, strategy), *_check_parameters(shard_set, shards, strategy)]
    if content and not shard_set.checked:
        for rank, fault in checksum_faults(shards).items():
            name = shard_set.name_of(rank)
            findings.append(ShardFinding(fault.what, rank, name, None, fault.expected, fault.actual))
    if content and strategy is not None and not is_alone:
        findings += _check_replicas(shard_set, shards, strategy, replicas)
        findings += _find_overlaps(shard_set, shards, strategy)
    return Verified(tuple(findings), shards)


def _warn_of_steps(shard_set: ShardSet) -> Iterator[ShardFinding]:
    for newer in shard_set.passed_over:
        ranks = sorted(newer.faults)
        listed = ", ".join(map(str, ranks[:SHOWN])) + (" and more" if len(ranks) > SHOWN else "")
        what = f"is newer, but missing or cut short on rank {listed}"
        for fault in newer.faults.values():
            if fault.kind in ("parameters", "checksum"):
                what = f"is newer, but not whole on rank {listed} ({fault.what})"
        yield ShardFinding(f"{_step_words(newer.saved.step)} {what}", severity="warning")
    if shard_set.earlier_run is not None:
        what = f"{shard_set.earlier_run} has a later step, but is of an earlier run in the same folder"
        yield ShardFinding(what, severity="warning")


def _check_files(shard_set: ShardSet, strategy: Strategy | None) -> Iterator[ShardFinding]:
    """What is wrong with a step, where none is complete; what other checks report is left to them."""
    for rank, shard in shard_set.read.items():
        if isinstance(shard, ShardUnreadable):
            yield ShardFinding(shard.what, rank, shard_set.name_of(rank))
    for rank, fault in sorted(shard_set.faults.items()):
        if fault.kind == "parameters":
            yield ShardFinding(fault.what, rank, shard_set.name_of(rank))
        elif fault.kind == "missing" and strategy is None:
            yield ShardFinding(f"no checkpoint of {_step_words(shard_set.step)}, which other ranks have", rank)


def _step_words(step: Step | None) -> str:
    return f"step {step[0]}_{step[1]}" if step else "the file"


def _check_ranks(shard_set: ShardSet, strategy: Strategy) -> Iterator[ShardFinding]:
    """One file for each rank of the strategy; ranks with different slices cannot have the same one."""
    for rank in range(strategy.world_size):
        if rank not in shard_set.files:
            of = f" of {_step_words(shard_set.step)}" if shard_set.step else ""
            yield ShardFinding(f"no checkpoint{of}", rank, expected=f"one for each of {strategy.world_size} ranks")
    if len(strategy.stages) > 1 or any(prod(layout.cuts) > 1 for layout in strategy.stages[0].values()):
        first: dict[Path, int] = {}
        for rank, path in shard_set.files.items():
            earlier = first.setdefault(path.resolve(), rank)
            if earlier != rank:
                yield ShardFinding(f"is the same file as rank {earlier}'s", rank, shard_set.name_of(rank))
    beyond = sorted(rank for rank in shard_set.files if rank >= strategy.world_size)
    if beyond:
        yield ShardFinding(
            f"{len(beyond)} more ranks than the strategy has (rank {beyond[0]} to {beyond[-1]})",
            expected=f"{strategy.world_size} ranks",
            found=f"{len(shard_set.files)}; a strategy of one pipeline stage alone? `mslaunch strategy merge` joins "
            f"them",
        )


def _is_derived(name: str, names: set[str]) -> bool:
    """Tell whether a parameter belongs to another (moment1.W to W); a checkpoint may leave such out."""
    parts = name.split(".")
    return any(".".join(parts[index:]) in names for index in range(1, len(parts)))


def _check_parameters(shard_set: ShardSet, shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[ShardFinding]:
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
        if shards and not _is_derived(name, names):
            yield ShardFinding("on no rank", parameter=name, expected="the strategy lists it")
    whole: dict[str, tuple[int, ...]] = {}
    for stage, layouts in strategy.stages.items():
        ranks = range(stage * strategy.stage_devices, (stage + 1) * strategy.stage_devices)
        here = {rank: shards[rank] for rank in ranks if rank in shards}
        for name in sorted(layouts.keys() & held):
            yield from _check_parameter(shard_set, here, name, layouts[name], whole)


def _check_parameter(
    shard_set: ShardSet, here: Mapping[int, Shard], name: str, layout: Layout, whole: dict[str, tuple[int, ...]]
) -> Iterator[ShardFinding]:
    """Slices are to be as the strategy says where it tells the whole shape, else as most are."""
    tensors = {rank: shard.tensors[name] for rank, shard in here.items() if name in shard.tensors}
    for rank, shard in here.items():
        if rank not in tensors and not shard.redundancy_removed:
            yield ShardFinding(
                "missing", rank, shard_set.name_of(rank), name, expected="as on the other ranks of its stage"
            )
    if not tensors:
        return
    usual = Counter(tensor.shape for tensor in tensors.values()).most_common(1)[0][0]
    kind = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0]
    if layout.shape is not None and len(layout.shape) == len(layout.axes):
        usual = tuple(size // cut for size, cut in zip(layout.shape, layout.cuts, strict=True))
    for rank, tensor in tensors.items():
        where = (rank, shard_set.name_of(rank), name)
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
            earlier = shape_words(whole[name])
            yield ShardFinding("stages disagree on its whole shape", None, None, name, earlier, shape_words(full))


def _check_replicas(
    shard_set: ShardSet, shards: Mapping[int, Shard], strategy: Strategy, listed: bool
) -> Iterator[ShardFinding]:
    """Compare slices that several ranks hold, bit by bit. Those that no strategy lists are few and always compared."""
    if not any(strategy.names() & shard.tensors.keys() for shard in shards.values()):
        return  # another network's: nothing of it is listed
    groups = _same_slices(shards, strategy, listed)
    groups = {key: ranks for key, ranks in groups.items() if len(ranks) > 1}
    compared: dict[int, set[str]] = defaultdict(set)
    for (name, _), ranks in groups.items():
        for rank in ranks:
            compared[rank].add(name)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda rank: _digests(shards[rank], compared[rank]), compared)
        digests = dict(zip(compared, made, strict=True))
    for (name, place), (first, *others) in groups.items():
        for rank in others:
            if digests[rank][name] == digests[first][name]:
                continue
            where = (rank, shard_set.name_of(rank), name, f"the bytes of rank {first}", "others")
            if place is not None:
                yield ShardFinding("differs from its replica", *where)
            else:
                is_single = prod(shards[rank].tensors[name].shape) == 1
                what = "is not in the strategy, and differs between ranks"
                yield ShardFinding(what, *where, severity="warning" if is_single else "error")


def _find_overlaps(shard_set: ShardSet, shards: Mapping[int, Shard], strategy: Strategy) -> Iterator[ShardFinding]:
    """Warn of slices that MindSpore's own transform has written wrong: they begin inside of another rank's.

    One pair of neighbours tells, for each parameter that is cut in a dimension other than the first.
    """
    overlaps = []
    for stage, layouts in strategy.stages.items():
        first = stage * strategy.stage_devices
        here = {rank: shards[rank] for rank in range(first, first + strategy.stage_devices) if rank in shards}
        here = {rank: shard for rank, shard in here.items() if format_of(shard.path).may_overlap}
        for name, layout in layouts.items():
            holders = {rank: shard for rank, shard in here.items() if name in shard.tensors}
            if pair := _overlapping_ranks(name, layout, holders, first):
                overlaps.append((name, *pair))
    if overlaps:
        parameter, rank, other = overlaps[0]
        more = f", and so do {len(overlaps) - 1} more parameters" if len(overlaps) > 1 else ""
        yield ShardFinding(
            f"begins inside the slice of rank {rank}{more}. MindSpore's transform_checkpoints writes such values "
            f"with safetensors 0.8: make the set again with `mslaunch ckpt reshard`, or with safetensors 0.7",
            other,
            shard_set.name_of(other),
            parameter,
            severity="warning",
        )


def _overlapping_ranks(name: str, layout: Layout, shards: Mapping[int, Shard], first: int) -> tuple[int, int] | None:
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
            other = places.get((*place[:axis], (end, 2 * end - begin), *place[axis + 1 :]))
            if other is not None:
                shift = (end - begin) * prod(whole[axis + 1 :])
                if _repeats(shards[rank], shards[other], name, shift):
                    return rank, other
                return None
    return None


def _repeats(first: Shard, second: Shard, name: str, shift: int) -> bool:
    """Tell whether the second slice begins with what the first holds behind so many elements."""
    tensor = first.tensors[name]
    size = tensor.itemsize
    if size not in (1, 2, 4, 8) or second.tensors[name].nbytes != tensor.nbytes:
        return False
    length = min(_COMPARED, tensor.nbytes - shift * size)
    if length < _DISTINCT * size:
        return False
    data = read_stretch(first, name, shift * size, length)
    if data != read_stretch(second, name, 0, length):
        return False
    values = {data[at : at + size] for at in range(0, len(data) - size + 1, size)}
    return len(values) >= _DISTINCT


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


class SetIsWrong(MslaunchError):
    """A set that cannot be used, with everything that is wrong with it."""

    def __init__(self, shard_set: ShardSet, errors: tuple[ShardFinding, ...]) -> None:
        lines = [f"{shard_set.folder}: {finding.words()}" for finding in errors[:SHOWN]]
        if len(errors) > SHOWN:
            lines.append(f"{shard_set.folder}: and {len(errors) - SHOWN} more; `mslaunch ckpt verify` lists all")
        super().__init__(*lines)


def require_valid(shard_set: ShardSet, strategy: Strategy | None, content: bool = True) -> Verified:
    """Verify a set, and refuse one with errors."""
    verified = verify(shard_set, strategy, content=content)
    if verified.errors:
        raise SetIsWrong(shard_set, verified.errors)
    return verified
