"""Random folders of checkpoints: every value says which network, run, step and place it belongs to."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from mslaunch.checkpoint.formats.table import frame, read_shard
from mslaunch.checkpoint.formats.tensor import Tensor

NETWORKS = ("net", "stage1", "stage2", "stage12", "generator", "resnet", "resnet_50", "llama-7b", "net_5", "v2.net")
SUFFIXES = (".ckpt", ".safetensors")
Damage = Literal["", "missing", "cut", "cut between", "empty", "checksum", "lacking", "shape"]
DAMAGES: tuple[Damage, ...] = ("missing", "cut", "cut between", "empty", "checksum", "lacking", "shape")
PER_RANK = 2
"""Elements of `w` that each rank holds."""
CODE = 64
"""A value is 64 times the number of its step, and its place in the parameter."""
Style = Literal["plain", "rank", "number"]


@dataclass(frozen=True)
class Saved:
    """One step of one run of one network, in one format."""

    network: str
    run: int
    step: tuple[int, int]
    suffix: str
    code: int
    damages: Mapping[int, Damage]
    """By rank; what is not named is whole."""
    with_checksum: bool

    @property
    def order(self) -> tuple[int, tuple[int, int]]:
        return self.run, self.step

    def is_readable(self, rank: int) -> bool:
        """Tell whether a reader can read this rank's file to its end."""
        damage = self.damages.get(rank, "")
        if damage == "cut between":
            return self.suffix == ".ckpt"
        return damage not in ("missing", "cut", "empty")


@dataclass(frozen=True)
class Folder:
    """A folder of checkpoints, as the oracle knows it."""

    world: int
    style: Style
    flat: bool
    below: str
    saved: tuple[Saved, ...]
    foreign: tuple[str, ...]

    @property
    def networks(self) -> dict[str, list[Saved]]:
        """The networks of which files are there, newest step first."""
        by_name: dict[str, list[Saved]] = {}
        for saved in self.saved:
            if self._is_there(saved):
                by_name.setdefault(self.network_of(saved), []).append(saved)
        return {name: sorted(steps, key=lambda one: one.order, reverse=True) for name, steps in by_name.items()}

    def network_of(self, saved: Saved) -> str:
        """The network that a name stands for: a further run is one only where all runs before it are there."""
        runs = {one.run for one in self.saved if one.network == saved.network and self._is_there(one)}
        return saved.network if runs >= set(range(saved.run)) else f"{saved.network} run {saved.run}"

    def _is_there(self, saved: Saved) -> bool:
        return any(saved.damages.get(rank) != "missing" for rank in range(self.world))

    def name(self, saved: Saved, rank: int) -> str:
        prefix = {"plain": saved.network, "rank": f"{saved.network}_rank_{rank}", "number": f"{saved.network}{rank}"}
        again = f"_{saved.run}" if saved.run else ""
        epoch, number = saved.step
        return f"{prefix[self.style]}{again}-{epoch}_{number}{saved.suffix}"

    def path(self, saved: Saved, rank: int) -> Path:
        """Where the file of a rank lies, relative to the folder."""
        name = self.name(saved, rank)
        return Path(name) if self.flat else Path(f"rank_{rank}", self.below, name)


def make_folder(random: Random) -> Folder:
    """Make up a folder: one to three networks, several steps and runs, some of it damaged."""
    world = random.randint(1, 4)
    style: Style = random.choice(("plain", "plain", "rank", "number"))
    flat = style == "rank" and random.random() < 0.3
    names = random.sample(NETWORKS, random.choice((1, 1, 1, 1, 2, 3)))
    if style == "number":
        names = [name for name in names if not name[-1].isdigit()][:1] or ["net"]
    codes = itertools.count(1)
    rate = random.choice((0.0, 0.05, 0.05, 0.2, 0.5))
    saved = tuple(one for name in names for one in _saved(random, name, world, rate, codes))
    foreign = tuple(name for name in FOREIGN if random.random() < 0.2)
    below = random.choice(("", "", "ckpt", "output/checkpoint"))
    return Folder(world, style, flat, below, saved, foreign)


def _saved(random: Random, name: str, world: int, rate: float, codes: Iterator[int]) -> Iterator[Saved]:
    suffix = random.choice(SUFFIXES)
    for run in range(random.choice((1, 1, 1, 2, 3))):
        steps = random.sample([(epoch, step) for epoch in (1, 2, 9, 10) for step in (5, 10, 120)], random.randint(1, 4))
        for step in sorted(steps):
            code = next(codes)
            with_checksum = suffix == ".ckpt" and random.random() < 0.4
            yield Saved(name, run, step, suffix, code, _damages(random, world, rate, with_checksum), with_checksum)
            if random.random() < 0.1:
                other = SUFFIXES[1 - SUFFIXES.index(suffix)]
                code = random.choice((code, next(codes)))
                yield Saved(name, run, step, other, code, _damages(random, world, rate, False), with_checksum=False)


def _damages(random: Random, world: int, rate: float, with_checksum: bool) -> dict[int, Damage]:
    damages: dict[int, Damage] = {}
    for rank in range(world):
        if random.random() < rate:
            damage = random.choice(DAMAGES)
            damages[rank] = "cut" if damage == "checksum" and not with_checksum else damage
    return damages


FOREIGN: dict[str, bytes] = {
    "strategy_train.ckpt": b"\x08\x01",
    "notes.txt": b"by hand",
    "net-graph.meta": b"x",
    "net_breakpoint.ckpt": b"x",
    "net-1_5.tmp": b"x",
    "last": b"net-1_5.ckpt",
}
"""Files that are no checkpoints, though some are called so."""


def write_folder(folder: Folder, place: Path, random: Random) -> None:
    """Write all files; their times are random."""
    for saved in folder.saved:
        for rank in range(folder.world):
            if saved.damages.get(rank) == "missing":
                continue
            path = place / folder.path(saved, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file_bytes(saved, rank, path))
    homes = [place] if folder.flat else [path for path in place.glob("rank_*") if path.is_dir()]
    for home in homes:
        for name in folder.foreign:
            (home / name).write_bytes(FOREIGN[name])
    for path in sorted(place.rglob("*")):
        if path.is_file():
            time = path.stat().st_mtime + random.uniform(0, 900)
            os.utime(path, (time, time))


def file_bytes(saved: Saved, rank: int, path: Path) -> bytes:
    """The file of a rank: `w` is cut in as many slices as there are ranks, `v` and `u` are whole on each."""
    damage = saved.damages.get(rank, "")
    values = parameters(saved.code, rank)
    if damage == "lacking":
        del values["v"]
    if damage == "shape":
        values["v"] = values["v"] * 2
    tensors = [Tensor(name, "Float32", (len(data),), ((0, 4 * len(data)),)) for name, data in values.items()]
    layout = frame(path, tensors)
    data = bytearray(layout.size)
    for at, head in layout.heads:
        data[at : at + len(head)] = head
    for name, places in layout.places.items():
        data[places[0][0] : sum(places[0])] = struct.pack(f"<{len(values[name])}f", *values[name])
    last = layout.heads[-1][0]
    if saved.with_checksum:
        checksum = zlib.crc32(data)
        if damage == "checksum":
            data[layout.places["w"][0][0] + 1] ^= 0xFF
        data += b"crc_num" + checksum.to_bytes(10, "big")
    if damage == "cut":
        return bytes(data[: last + 5])
    if damage == "cut between":
        return bytes(data[:last]) if saved.suffix == ".ckpt" else bytes(data[:-1])
    return b"" if damage == "empty" else bytes(data)


def parameters(code: int, rank: int) -> dict[str, list[float]]:
    begin = rank * PER_RANK
    return {
        "w": [float(code * CODE + index) for index in range(begin, begin + PER_RANK)],
        "v": [float(code * CODE + index) for index in range(3)],
        "u": [float(code * CODE)],
    }


def read_values(path: Path) -> dict[str, list[float]]:
    """The values of a checkpoint file."""
    data = path.read_bytes()
    values: dict[str, list[float]] = {}
    for name, tensor in read_shard(path).tensors.items():
        content = b"".join(data[at : at + length] for at, length in tensor.parts)
        values[name] = list(struct.unpack(f"<{len(content) // 4}f", content))
    return values
