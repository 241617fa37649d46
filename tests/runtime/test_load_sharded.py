"""Checkpoints inside a rank: load_sharded and distributed_predict take what `mslaunch infer` has chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mslaunch.runtime import checkpoints
from tests.beds.sharded import ask_mindspore, needs_mindspore, write_shard
from tests.beds.two_networks import floats

LOAD = """
import os, sys
os.environ["MSLAUNCH_CHECKPOINTS"] = sys.argv[1]
from mindspore import nn
from mslaunch.runtime import load_sharded

network = nn.Dense(4, 3)
assert load_sharded(network) == []
assert network.weight.asnumpy().ravel().tolist() == list(range(12))
"""


def told(folder: Path, name: str) -> Path:
    """Write what a rank is told of a checkpoint of this name."""
    path = folder / "checkpoints.json"
    path.write_text(json.dumps({"files": [str(folder / name)], "strategy": None}))
    return path


@needs_mindspore
@pytest.mark.mindspore
@pytest.mark.parametrize("name", ["net.ckpt", "net.safetensors"])
def test_a_rank_loads_either_kind_of_file(tmp_path: Path, name: str) -> None:
    """What import, reshard and convert write, and infer accepts."""
    write_shard(tmp_path / name, {"weight": floats(3, 4), "bias": floats(3)})
    ask_mindspore(LOAD, told(tmp_path, name))


def test_distributed_predict_names_the_files_that_it_cannot_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore's own function takes shards of ranks as .ckpt files alone."""
    monkeypatch.setenv("MSLAUNCH_CHECKPOINTS", str(told(tmp_path, "net.safetensors")))
    monkeypatch.setenv("RANK_SIZE", "2")
    with pytest.raises(ValueError, match=r"net\.safetensors: distributed_predict needs \.ckpt files"):
        checkpoints.distributed_predict(None)
