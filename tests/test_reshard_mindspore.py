"""MindSpore as the witness: its own transform makes the same, and it loads what is written here."""

from __future__ import annotations

import json
import random
from math import prod
from pathlib import Path
from typing import Any

import pytest

from mslaunch.checkpoint.layout import Layout
from mslaunch.checkpoint.stages import merge_stages
from mslaunch.checkpoint.strategy import read_strategy, write_strategy
from mslaunch.checkpoint.transform import STRATEGY, Wanted
from tests.sharded import (
    FIXTURES,
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

ODD_CASES = 24

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


def random_layout(chance: random.Random, dimensions: int) -> dict[str, Any]:
    """A layout for up to eight ranks, with dimensions cut along two axes or by the optimizer now and then."""
    matrix = [chance.choice([1, 2, 2, 3]) for _ in range(chance.randint(1, 3))]
    while prod(matrix) > 8:
        matrix.pop()
    free = [*range(len(matrix))]
    tensor_map: list[list[int]] = []
    for _ in range(dimensions):
        along = [free.pop() for _ in range(min(len(free), chance.choice([0, 1, 1, 2])))]
        tensor_map.append(along or [-1])
    layout: dict[str, Any] = {"dev_matrix": matrix, "tensor_map": tensor_map}
    replicated = [matrix[-1 - k] for k in free]
    if chance.random() < 0.5 and prod(replicated) > 1:
        # MindSpore wants the step of the last axis that replicates. Axes are given to dimensions in order, since its
        # transform forgets their order where the optimizer cuts further.
        last = next(k for k in free if matrix[-1 - k] > 1)
        layout |= {"opt_weight_shard_step": prod(matrix[len(matrix) - last :]), "opt_weight_shard_size": -1}
    return layout
