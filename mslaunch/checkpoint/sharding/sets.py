"""Finds the newest step that all ranks have whole: for a restart, for `infer` and `ckpt`, and for `prune`."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import BinaryIO, Literal

from mslaunch.checkpoint.formats.table import FORMATS, Shard, checksum, holds_torch, read_shard
from mslaunch.checkpoint.formats.tensor import CHUNK, chunks, pieces
from mslaunch.checkpoint.sharding.saved_files import (
    Network,
    SavedStep,
    Step,
    files_below,
    networks,
    saved_file,
    step_of,
)
from mslaunch.errors import HoldsTorch, RequestError, ShardUnreadable
from mslaunch.shared import layout

READERS = 16
NEAR = 2
STRATEGIES = ("strategy.ckpt", "strategy.json", "train_strategy.ckpt")
"""What a strategy is called that lies beside the shards it belongs to."""
_OF_RANK = re.compile(rf"{layout.RANK}\d+")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a rank's file of a step is not whole."""

    kind: Literal["missing", "unreadable", "parameters", "checksum"]
    what: str
    expected: str | None = None
    actual: str | None = None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A newer step that is not complete."""

    saved: SavedStep
    faults: Mapping[int, Fault]


@dataclass(frozen=True, slots=True)
class ShardSet:
    """One file per rank, all of one network and step."""

    folder: Path
    files: Mapping[int, Path]
    step: Step | None
    """None where the files' names hold no step."""
    network: str = ""
    """The prefix of the files' names; `*` stands for the rank's number."""
    run: int = 0
    """Which of the runs in the folder wrote it; MindSpore calls the files of run 1 PREFIX_1."""
    passed_over: tuple[PassedOver, ...] = ()
    earlier_run: str | None = None
    """A file of an earlier run whose step has a higher number."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """What is wrong with this step, where no step is complete."""
    read: Mapping[int, Shard | ShardUnreadable] = field(default_factory=dict)
    checked: bool = False

    def name_of(self, rank: int) -> str:
        path = self.files[rank]
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else str(path)


def find_set(
    path: Path, ranks: int | None = None, step: str | None = None, prefix: str | None = None, content: bool = True
) -> ShardSet:
    """Find the newest step that all ranks have whole in a folder that a user names, or the step that was asked for.

    Where no step is complete, the one with the fewest faults is returned, for `verify` to report them.
    """
    number = parse_step(step)
    if path.exists() and holds_torch(path):
        raise HoldsTorch(str(path))
    if path.is_file():
        return ShardSet(path.parent, {0: path}, step_of(path), saved_file(path, 0).prefix, read={0: _read(path)})
    if not path.is_dir():
        raise RequestError(
            f"{path}: no such checkpoint. Name a file, or the folder that holds rank_0, rank_1 and so on."
        )
    files = files_below(path, prefix)
    if not files:
        raise _no_file(path, prefix)
    stepped = [file for file in files if file.step is not None]
    network = only_network(path, networks(stepped or files, ranks), prefix)
    if number is not None and not any(saved.step == number for saved in network.steps):
        steps = sorted({saved.step for saved in network.steps if saved.step})
        have = ", ".join(f"{epoch}_{last}" for epoch, last in steps)
        raise RequestError(f"{path}: no rank has step {step}. It holds {have or 'no step in the names of its files'}.")
    if ranks is None:
        _check_runs(path, network)
    expected = sorted(network.ranks) if ranks is None else range(ranks)
    shard_set = newest_complete(network, path, expected, number, content)
    _check_later_runs(shard_set, network)
    return shard_set


def _no_file(folder: Path, prefix: str | None) -> RequestError:
    if prefix is None or not (others := files_below(folder)):
        patterns = ", ".join(f"*{suffix}" for suffix in FORMATS)
        return RequestError(f"{folder}: no checkpoint ({patterns}) here nor in rank_N folders below.")
    names = ", ".join(sorted({file.path.name for file in others})[:4])
    return RequestError(f"{folder}: no file begins with {prefix!r} (--prefix); there are {names}.")


def only_network(
    folder: Path, several: Sequence[Network], prefix: str | None, choose: str = "Name one: --prefix"
) -> Network:
    """Return the only network, or the one of this very prefix; two are never mixed."""
    exact = [network for network in several if prefix in (network.name, network.name.rpartition("/")[2])]
    if len(exact or several) > 1:
        raise SeveralNetworks(folder, [network.name for network in exact or several], choose)
    return (exact or several)[0]


class SeveralNetworks(RequestError):
    """Files of several networks, of which only the user knows which one to take."""

    def __init__(self, folder: Path, names: Sequence[str], choose: str) -> None:
        self.names = names
        super().__init__(f"{folder}: holds several networks ({', '.join(names)}). {choose} '{names[0]}'.")


def _check_runs(folder: Path, network: Network) -> None:
    """Refuse a further run of other ranks than the run before it: one of them may be left from another job."""
    ranks: dict[int, set[int]] = {}
    for saved in network.steps:
        ranks.setdefault(saved.run, set()).update(saved.files)
    newest = max(ranks)
    for run, own in ranks.items():
        if own != ranks[newest]:
            earlier, latest = _prefix_of(network, run), _prefix_of(network, newest)
            raise RequestError(
                f"{folder}: {earlier} has files of {len(own)} ranks, {latest} of {len(ranks[newest])}; "
                f"they are two runs. Name one: --prefix '{latest}', or --prefix '{earlier}-'."
            )


def _check_later_runs(shard_set: ShardSet, network: Network) -> None:
    """Refuse to take an earlier run where the later one has other parameters: it may be another network."""
    for newer in shard_set.passed_over:
        faults = [fault.what for fault in newer.faults.values() if fault.kind == "parameters"]
        if faults and newer.saved.run > shard_set.run:
            later, earlier = _prefix_of(network, newer.saved.run), _prefix_of(network, shard_set.run)
            raise RequestError(
                f"{shard_set.folder}: {newer.saved.name} is of a later run and {faults[0]}: "
                f"cut short, or another network. Name one: --prefix '{later}', or --prefix '{earlier}-'."
            )


def _prefix_of(network: Network, run: int) -> str:
    return f"{network.name}_{run}" if run else network.name


def strategy_beside(path: Path) -> Path | None:
    """Find the strategy that lies in a folder of shards; None where there is none, or the folder has no shards."""
    if not path.is_dir() or not any(_OF_RANK.search(entry.name) for entry in path.iterdir()):
        return None
    strategies = [path / name for name in STRATEGIES if (path / name).is_file()]
    if len(strategies) > 1:
        names = " and ".join(file.name for file in strategies)
        raise RequestError(f"{path}: has {names}. Say with --strategy FILE which one belongs to the shards.")
    return strategies[0] if strategies else None


def parse_step(text: str | None) -> Step | None:
    """Read `3_120`: epoch 3, step 120."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,18})[_:-]([0-9]{1,18})", text)
    if match is None:
        raise RequestError(f"--step {text}: write EPOCH_STEP as in the files' names, for example 3_120.")
    return int(match[1]), int(match[2])


# The newest complete step of a network


def newest_complete(
    network: Network,
    folder: Path,
    ranks: Collection[int],
    step: Step | None = None,
    content: bool = True,
    strict: bool = False,
    only: SavedStep | None = None,
) -> ShardSet:
    """Find the newest step of a network that all these ranks have whole, or check one (`step`, `only`).

    Whole: readable to its end, with the parameters that the step before has, and (`content`) with the checksum that it
    records. `strict` also passes over a file that lacks a parameter of another rank, unless the step before lacks it
    too: a stage of a pipeline never has a part of another stage's parameters only.
    """
    headers = _Headers(network)
    passed_over: list[PassedOver] = []
    for saved in network.steps:
        if (step is not None and saved.step != step) or (only is not None and saved is not only):
            continue
        faults = headers.faults(saved, ranks, strict)
        if not faults and content:
            faults = checksum_faults(headers.shards(saved))
        if not faults:
            _check_other_format(network, saved, headers)
            break
        passed_over.append(PassedOver(saved, faults))
    else:
        best = min(passed_over, key=lambda passed: len(passed.faults))  # the newest of those with the fewest
        saved, faults, passed_over, content = best.saved, dict(best.faults), [], False
    read = headers.read(saved.files.values())
    earlier = (other for other in network.steps if other.run < saved.run and (other.step or ()) > (saved.step or ()))
    return ShardSet(
        folder,
        saved.files,
        saved.step,
        network.name,
        saved.run,
        tuple(passed_over),
        next((other.name for other in earlier), None),
        faults,
        {rank: read[path] for rank, path in saved.files.items()},
        content,
    )


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers of a network's files, each read once, several at a time."""

    network: Network
    headers: dict[Path, Shard | ShardUnreadable] = field(default_factory=dict)

    def read(self, paths: Iterable[Path]) -> Mapping[Path, Shard | ShardUnreadable]:
        new = [path for path in dict.fromkeys(paths) if path not in self.headers]
        with ThreadPoolExecutor(READERS) as pool:
            self.headers.update(zip(new, pool.map(_read, new), strict=True))
        return self.headers

    def shards(self, saved: SavedStep) -> dict[int, Shard]:
        """The files of a step that can be read."""
        read = self.read(saved.files.values())
        shards = {rank: read[path] for rank, path in saved.files.items()}
        return {rank: shard for rank, shard in shards.items() if isinstance(shard, Shard)}

    def faults(self, saved: SavedStep, ranks: Collection[int], strict: bool) -> dict[int, Fault]:
        """Say what is wrong with a step, rank by rank."""
        shards = self.shards(saved)
        faults = {rank: Fault("missing", "missing") for rank in ranks if rank not in saved.files}
        for rank, path in saved.files.items():
            error = self.headers[path]
            if isinstance(error, ShardUnreadable):
                faults[rank] = Fault("unreadable", error.what)
        neighbours = self._neighbours(saved, shards)
        for rank, shard in shards.items():
            _check_shapes(shard, neighbours[rank])
            lacking = (_lacking(shard, other, other.path.name) for other in neighbours[rank])
            what = next(filter(None, lacking), None)
            nearest = neighbours[rank][:1]
            if strict and what is None and not (nearest and nearest[0].tensors.keys() == shard.tensors.keys()):
                what = lacking_beside_others(rank, shards)
            if what is not None:
                faults[rank] = Fault("parameters", what)
        return faults

    def _neighbours(self, saved: SavedStep, shards: Mapping[int, Shard]) -> dict[int, list[Shard]]:
        """For each rank the steps before that can be read, nearest first; where they are too few, steps after.

        A file of the same run and size has the same parameters, and is not read: headers of many ranks take seconds.
        """
        steps = self.network.steps
        at = steps.index(saved)
        neighbours: dict[int, list[Shard]] = {rank: [] for rank in shards}
        newer = [other for other in steps[:at] if other.run == saved.run]
        for other in (*steps[at + 1 :], *reversed(newer)):
            if (other.run, other.step) == (saved.run, saved.step):
                continue  # the same step in the other format
            near = {rank: other.files[rank] for rank in shards if rank in other.files and len(neighbours[rank]) < NEAR}
            same = near if other.run == saved.run else {}
            alike = set()
            for rank, path in same.items():
                with suppress(OSError):
                    if path.stat().st_size == shards[rank].size:
                        alike.add(rank)
            read = self.read(path for rank, path in near.items() if rank not in alike)
            for rank, path in near.items():
                shard = shards[rank] if rank in alike else read[path]
                if isinstance(shard, Shard):
                    neighbours[rank].append(shard)
            if all(len(some) == NEAR for some in neighbours.values()):
                break
        return neighbours


def _read(path: Path) -> Shard | ShardUnreadable:
    try:
        return read_shard(path)
    except ShardUnreadable as error:
        return error


def _check_shapes(shard: Shard, neighbours: Sequence[Shard]) -> None:
    """Refuse files of one prefix with different shapes: they are of two networks, or cut for other ranks."""
    for other in neighbours:
        for name, tensor in shard.tensors.items():
            beside = other.tensors.get(name, tensor)
            if beside.words() != tensor.words():
                raise RequestError(
                    f"{shard.path}: has {name} as {tensor.words()}, and {other.path.name} has it as {beside.words()}; "
                    f"they are of two networks, or of other numbers of ranks. Move one of them elsewhere."
                )


def _lacking(shard: Shard, other: Shard, name: str) -> str | None:
    missing = [parameter for parameter in other.tensors if parameter not in shard.tensors]
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"lacks {missing[0]}{more}, which {name} has"


def lacking_beside_others(rank: int, shards: Mapping[int, Shard]) -> str | None:
    """Say what a file lacks that another rank has, where it has nothing else than that rank."""
    own = shards[rank]
    for other, shard in shards.items():
        if own.tensors.keys() < shard.tensors.keys() and not own.redundancy_removed:
            return _lacking(own, shard, f"rank {other}'s file")
    return None


def checksum_faults(shards: Mapping[int, Shard]) -> dict[int, Fault]:
    """Compare recorded checksums with the bytes; this reads whole files, those alone that record one."""
    recorded = {rank: shard for rank, shard in shards.items() if shard.crc is not None}
    faults: dict[int, Fault] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sums = {rank: pool.submit(checksum, shard) for rank, shard in recorded.items()}
    for rank, shard in recorded.items():
        try:
            real = sums[rank].result()
        except (OSError, ValueError) as error:
            faults[rank] = Fault("unreadable", f"cannot be read: {error}")
            continue
        if real != shard.crc:
            faults[rank] = Fault("checksum", "its bytes have changed (crc_num)", str(shard.crc), str(real))
    return faults


def _check_other_format(network: Network, saved: SavedStep, headers: _Headers) -> None:
    for other in network.steps:
        is_double = (other.run, other.step) == (saved.run, saved.step) and other.suffix != saved.suffix
        for rank, shard in headers.shards(other).items() if is_double else ():
            own = headers.shards(saved)[rank]
            if different := differing_parameter({0: own, 1: shard}):
                raise RequestError(
                    f"{own.path.parent}: {own.path.name} and {shard.path.name} are of one step and differ "
                    f"({different[1]}). Move one of them elsewhere."
                )


def differing_parameter(shards: Mapping[int, Shard]) -> tuple[int, str] | None:
    """Find a rank and its first parameter that is not the first rank's; single values, such as counters, may differ."""
    first, *others = sorted(shards)
    beside = [shards[rank] for rank in others]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for find in (_other_header, _other_bytes):
            names = pool.map(partial(find, shards[first]), beside)
            for rank, name in zip(others, names, strict=True):
                if name is not None:
                    return rank, name
    return None


def _other_header(first: Shard, second: Shard) -> str | None:
    for name in dict.fromkeys((*first.tensors, *second.tensors)):
        own, theirs = first.tensors.get(name), second.tensors.get(name)
        if own is None or theirs is None or own.words() != theirs.words():
            return name
    return None


def _other_bytes(first: Shard, second: Shard) -> str | None:
    with _opened(first) as file, _opened(second) as beside:
        for name, tensor in first.tensors.items():
            for begin in range(0, tensor.nbytes if prod(tensor.shape) > 1 else 0, CHUNK):
                if _window(first, file, name, begin, CHUNK) != _window(second, beside, name, begin, CHUNK):
                    return name
    return None


def _opened(shard: Shard) -> BinaryIO:
    try:
        return shard.path.open("rb")
    except OSError as error:
        raise ShardUnreadable(str(shard.path), str(error)) from None


def _window(shard: Shard, file: BinaryIO, name: str, begin: int, length: int) -> bytes:
    places = pieces(shard.tensors[name].parts, begin, length)
    try:
        return b"".join(data for at, _, size in places for data in chunks(file.fileno(), at, size))
    except (OSError, ValueError) as error:
        raise ShardUnreadable(str(shard.path), str(error)) from None


def read_stretch(shard: Shard, name: str, begin: int, length: int) -> bytes:
    """Read some bytes of a parameter."""
    with _opened(shard) as file:
        return _window(shard, file, name, begin, length)
