"""Strategy files and shards, as `mslaunch strategy` and `mslaunch ckpt` read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz.mutate import mutate_bytes, mutate_json
from fuzz.requests import ROOT
from fuzz.run import Border
from mslaunch.checkpoint.formats.safetensors import frame
from mslaunch.checkpoint.formats.tensor import Tensor
from mslaunch.checkpoint.sharding.sets import find_set
from mslaunch.checkpoint.sharding.strategy import Strategy, box, read_strategy
from mslaunch.checkpoint.sharding.verify import verify
from mslaunch.cli.ckpt import show
from mslaunch.cli.strategy import show_strategy

FIXTURES = ROOT / "tests" / "fixtures"
STRATEGIES = ("tp2/strategy_0.ckpt", "dp2tp2opt/strategy_0.ckpt", "tp4/strategy_0.json", "pp2tp2_merged.ckpt")


def _mutate_strategy(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    return (mutate_json if data.startswith(b"{") else mutate_bytes)(random, data, samples)


def _open_strategy(folder: Path) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        path = folder / ("s.json" if data[:1] in (b"{", b"[") else "s.ckpt")
        path.write_bytes(data)
        show_strategy(str(path))
        show_strategy(str(path), as_json=True)
        _boxes(read_strategy(path))

    return read


def _boxes(strategy: Strategy) -> None:
    if strategy.lone_stage is not None:
        return
    last = strategy.world_size - 1
    for layout in list(strategy.of_rank(last).values())[:50]:
        box(layout, layout.shape or (256,) * len(layout.axes), last % strategy.stage_devices)


def _small_safetensors() -> bytes:
    tensors = [
        Tensor("w", "Float32", (2, 3), ((0, 24),)),
        Tensor("n", "Int32", (), ((0, 4),)),
        Tensor("b", "BFloat16", (4,), ((0, 8),)),
    ]
    layout = frame(tensors)
    data = bytearray(layout.size)
    for at, head in layout.heads:
        data[at : at + len(head)] = head
    return bytes(data)


def _mutate_shard(random: Random, data: bytes, samples: tuple[bytes, ...]) -> bytes:
    """The header of a .safetensors is changed as JSON, and its length with it."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) or random.random() < 0.3:
        return mutate_bytes(random, data, samples)
    header = mutate_json(random, data[8 : 8 + length], (data[8 : 8 + length],))
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _open_shard(folder: Path) -> Callable[[bytes], object]:
    strategy = read_strategy(FIXTURES / "strategies" / "tp2" / "strategy_0.ckpt")

    def read(data: bytes) -> None:
        suffix = ".ckpt" if data[:1] == b"\x0a" else ".safetensors"
        for rank in range(2):
            place = folder / suffix / f"rank_{rank}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"net{suffix}").write_bytes(data)
        for finding in verify(find_set(folder / suffix), strategy, replicas=True).findings:
            finding.words()
        show(str(folder / suffix / "rank_0" / f"net{suffix}"))
        show(str(folder / suffix / "rank_0" / f"net{suffix}"), as_json=True)

    return read


def _shard_samples() -> tuple[bytes, ...]:
    ckpt = (FIXTURES / "checkpoints" / "tp2" / "rank_0" / "net0.ckpt").read_bytes()
    safetensors = _small_safetensors()
    metadata = {"__metadata__": {"format": "ms", "crc_num": "123", "remove_redundancy": "True"}}
    header = json.dumps({**metadata, **json.loads(safetensors[8 : 8 + int.from_bytes(safetensors[:8], "little")])})
    body = safetensors[8 + int.from_bytes(safetensors[:8], "little") :]
    return ckpt, safetensors, len(header).to_bytes(8, "little") + header.encode() + body


BORDERS = (
    Border(
        "strategy",
        tuple((FIXTURES / "strategies" / name).read_bytes() for name in STRATEGIES),
        _mutate_strategy,
        _open_strategy,
    ),
    Border("shards", _shard_samples(), _mutate_shard, _open_shard),
)
