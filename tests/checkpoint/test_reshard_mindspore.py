"""MindSpore as the witness: its own transform makes the same, and it loads what is written here."""

from __future__ import annotations

import json
import random
from math import prod
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.sharding.reshard import STRATEGY, Target
from mslaunch.checkpoint.sharding.strategy import Layout, merge_stages, read_strategy, write_strategy
from tests.beds.sharded import (
    PAIRS,
    STRATEGIES,
    Content,
    ask_mindspore,
    checkpoints,
    contents_of,
    json_strategy,
    needs_mindspore,
    once,
    plan,
    strategy_file,
    strategy_of,
    write_shard,
)

pytestmark = [pytest.mark.mindspore, needs_mindspore]

ODD: list[tuple[Layout, tuple[int, ...]]] = [
    (Layout((2, 2), ((0, 1),)), (8,)),
    (Layout((2, 2), ((1, 0),)), (8,)),
    (Layout((2, 3), ((1, 0), ())), (12, 5)),
    (Layout((2, 3), ((1,), (0,))), (6, 4)),
    (Layout((2, 2, 2), ((1, 0), (2,))), (8, 6)),
    (Layout((2, 2, 2), ((), (2, 0), ())), (3, 8, 2)),
    (Layout((2, 2, 2), ((2,), (), (0,))), (4, 3, 6)),
    (Layout((4,), ((), ()), -1), (8, 3)),
    (Layout((2, 2), ((1,), ()), -1), (8, 3)),
    (Layout((2, 2), ((0,), ()), -1), (8, 3)),
    (Layout((2, 2, 2), ((1,), ()), -1), (8, 3)),
    (Layout((2, 2, 2), ((2,), ()), 2), (8, 3)),
    (Layout((4, 2), ((), (1,)), 2), (6, 4)),
    (Layout((2, 2, 2), ((1,), (2,)), -1), (8, 6)),
]
"""Dimensions cut along two axes, and optimizer parallelism over all or some replicas, wherever these stand.

Where the optimizer cuts further, axes stand in the order of the dimensions: MindSpore's transform forgets it otherwise.
"""
FULL = contents_of(checkpoints("full"))[0]
TYPES: Content = {
    "brain": ("BFloat16", (3, 5), bytes(range(100, 130))),
    "small": ("Int8", (7,), b"\x80\xff\0\x01abc"),
    "half": ("Float16", (2,), b"\0\x3c\0\xbc"),
    "scalar": ("Float32", (), b"\0\0\x80\x3f"),
    "steps": ("Int64", (), bytes([1, 2, 3, 4, 5, 0, 0, 0])),
    "flags": ("Bool", (3,), b"\0\x01\x01"),
}

WITNESS = """
import json
import sys
from pathlib import Path

import mindspore
import numpy as np

folder, asked = Path(sys.argv[1]), json.loads(Path(sys.argv[1], "asked.json").read_text())
said = {"refused": {}}

for name, (source, old, new) in asked["transform"].items():
    try:
        mindspore.transform_checkpoints(source, str(folder / "theirs" / name), "net", old, new)
    except ValueError as error:
        said["refused"][name] = str(error)

for path in asked["load"]:
    loaded = mindspore.load_checkpoint(path, format=path.rpartition(".")[2])
    said[path] = {
        key: [str(value.dtype), list(value.shape), bytes(value.get_bytes()).hex()] for key, value in loaded.items()
    }


class Network(mindspore.nn.Cell):
    def __init__(self, shapes):
        super().__init__()
        zeros = {name: mindspore.Parameter(mindspore.Tensor(np.zeros(shape, np.float32)), name=name)
                 for name, shape in shapes.items()}
        self.held = mindspore.ParameterTuple(list(zeros.values()))


network = Network(asked["network"])
files, strategy = asked["distributed"]
mindspore.load_distributed_checkpoint(network, files, None, strategy)
said["distributed"] = {value.name: value.asnumpy().tobytes().hex() for value in network.get_parameters()}

mindspore.merge_pipeline_strategys(asked["stages"], str(folder / "merged.json"))
(folder / "said.json").write_text(json.dumps(said))
"""


def content_as_told(told: dict[str, Any]) -> Content:
    return {name: (dtype, tuple(shape), bytes.fromhex(data)) for name, (dtype, shape, data) in told.items()}


def write_odd(folder: Path, layout: Layout) -> Path:
    """A strategy for one parameter: as it is written here, or in JSON where the optimizer cuts too."""
    if not layout.optimizer:
        (folder / "strategy.ckpt").write_bytes(write_strategy([("w", layout)]))
        return folder / "strategy.ckpt"
    devices = layout.devices
    last = max(axis for axis in range(len(devices)) if (axis,) not in layout.axes)
    item = {
        "dev_matrix": devices,
        "tensor_map": [len(devices) - 1 - axes[0] if axes else -1 for axes in layout.axes],
        "opt_weight_shard_step": prod(devices[last + 1 :]),
        "opt_weight_shard_size": layout.optimizer,
    }
    (folder / "strategy.json").write_bytes(json_strategy({"w": item}))
    return folder / "strategy.json"


def make_odd(folder: Path, number: int) -> dict[str, tuple[str, str | None, str | None]]:
    """A whole parameter, an odd strategy for it, and the set that is made of them here."""
    layout, shape = ODD[number]
    folder.mkdir()
    path = write_odd(folder, layout)
    data = random.Random(number).randbytes(4 * prod(shape))
    write_shard(folder / "whole/rank_0/net.ckpt", {"w": ("Float32", shape, data)})
    plan(folder / "whole", None, Target(read_strategy(path))).write(folder / "cut")
    return {
        f"odd-{number}-cut": (str(folder / "whole"), None, str(path)),
        f"odd-{number}-whole": (str(folder / "cut"), str(path), None),
    }


def make(folder: Path) -> None:
    """Write everything that MindSpore is asked about, and ask it all at once."""
    files = {layout: str(strategy_file(layout)) for layout in STRATEGIES}
    transform: dict[str, Any] = {
        f"{one}-{other}": (str(checkpoints(one)), files.get(one), files.get(other)) for one, other in PAIRS
    }
    for number in range(len(ODD)):
        transform |= make_odd(folder / f"odd-{number}", number)
    for suffix in (".ckpt", ".safetensors"):
        for layout in ("full", "pp2tp2", "dp2tp2opt"):
            planned = plan(checkpoints("tp2"), strategy_of("tp2"), Target(strategy_of(layout), suffix=suffix))
            planned.write(folder / f"{layout}{suffix}")
        plan(checkpoints("tp2"), strategy_of("tp2"), Target(degree=4, suffix=suffix)).write(folder / f"tp4{suffix}")
        write_shard(folder / f"types{suffix}" / f"net{suffix}", TYPES)
    made = str(folder / "tp4.ckpt" / STRATEGY)
    transform["degree-whole"] = (str(folder / "tp4.ckpt"), made, None)
    transform["degree-cut"] = (str(checkpoints("full")), None, made)
    transform["safetensors-whole"] = (str(folder / "tp4.safetensors"), made, None)
    (folder / "stages").mkdir()
    for stage in range(2):
        layouts = {f"w{stage}": {"dev_matrix": [2], "tensor_map": [0], "tensor_shape": [4]}}
        (folder / "stages" / f"s{stage}.json").write_bytes(json_strategy(layouts, stage))
    asked = {
        "transform": transform,
        "load": [str(path) for kind in ("ckpt", "safetensors") for path in folder.glob(f"*.{kind}/**/net*.{kind}")],
        "network": {name: shape for name, (_, shape, _) in FULL.items() if name != "global_step"},
        "distributed": ([str(folder / f"tp4.ckpt/rank_{rank}/net{rank}.ckpt") for rank in range(4)], made),
        "stages": str(folder / "stages"),
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    ask_mindspore(WITNESS, folder)


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "witness", make)


@pytest.fixture(scope="module")
def said(witness: Path) -> Any:
    return json.loads((witness / "said.json").read_text())


@pytest.mark.parametrize(("one", "other"), [pair for pair in PAIRS if pair != ("full", "full")])
def test_mindspores_transform_makes_the_same(witness: Path, tmp_path: Path, one: str, other: str) -> None:
    """Bit by bit, for every pair of layouts."""
    plan(checkpoints(one), strategy_of(one), Target(strategy_of(other))).write(tmp_path / "ours")
    assert contents_of(tmp_path / "ours") == contents_of(witness / "theirs" / f"{one}-{other}")


def test_mindspore_refuses_only_what_needs_no_transform(said: Any) -> None:
    """From whole to whole; here that is a copy."""
    assert [*said["refused"]] == ["full-full"]


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_layouts_are_cut_and_joined_as_by_mindspore(witness: Path, number: int) -> None:
    """Two axes on one dimension, and optimizer parallelism over whatever replicates; it also joins what we cut."""
    ours = witness / f"odd-{number}"
    assert contents_of(ours / "cut") == contents_of(witness / "theirs" / f"odd-{number}-cut")
    assert contents_of(ours / "whole") == contents_of(witness / "theirs" / f"odd-{number}-whole")


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize("layout", ["full", "pp2tp2", "dp2tp2opt", "tp4"])
def test_mindspore_loads_what_is_written_here(witness: Path, said: Any, layout: str, suffix: str) -> None:
    """load_checkpoint reads the same names, types, shapes and bytes, in both formats."""
    for rank, known in contents_of(checkpoints(layout)).items():
        (path,) = (witness / f"{layout}{suffix}" / f"rank_{rank}").iterdir()
        assert content_as_told(said[str(path)]) == known


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_mindspore_loads_all_types(witness: Path, said: Any, suffix: str) -> None:
    """bfloat16, small integers, scalars."""
    assert content_as_told(said[str(witness / f"types{suffix}" / f"net{suffix}")]) == TYPES


def test_mindspore_takes_a_strategy_that_was_made_here(witness: Path) -> None:
    """Its transform cuts by it and joins by it."""
    assert contents_of(witness / "theirs" / "degree-cut") == contents_of(checkpoints("tp4"))
    assert contents_of(witness / "theirs" / "degree-whole") == contents_of(checkpoints("full"))
    assert contents_of(witness / "theirs" / "safetensors-whole") == contents_of(checkpoints("full"))


def test_load_distributed_checkpoint_takes_both(said: Any) -> None:
    """The shards and the strategy that --to-tp wrote, joined into a network."""
    assert said["distributed"] == {name: data.hex() for name, (_, _, data) in FULL.items() if name != "global_step"}


def test_json_stages_are_merged_as_by_mindspore(witness: Path) -> None:
    """What merge_pipeline_strategys writes of JSON files says the same."""
    data, _, _ = merge_stages(witness / "stages")
    theirs = json.loads((witness / "merged.json").read_text())
    assert json.loads(data)["parallel_layout_item"] == theirs["parallel_layout_item"]
    assert read_strategy(witness / "merged.json").stages == merge_stages(witness / "stages")[2].stages
